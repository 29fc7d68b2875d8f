#include "core/runtime/buffer.h"

#include "absl/status/status.h"
#include "core/base/checked.h"
#include "core/base/status.h"
#include "core/base/text.h"

namespace pkv {
namespace {

const char* kind_name(int32_t kind) { return kind == PKV_MEMORY_HOST ? "host" : "device"; }

}  // namespace

absl::StatusOr<Buffer> Buffer::create(std::shared_ptr<const Device> device, int32_t kind,
                                      int64_t bytes) {
  if (kind != PKV_MEMORY_DEVICE && kind != PKV_MEMORY_HOST) {
    return absl::InvalidArgumentError(str_cat("kind=", kind, ", accepted: ", PKV_MEMORY_DEVICE,
                                              " (device) or ", PKV_MEMORY_HOST, " (host)"));
  }
  if (bytes < 0) {
    return absl::InvalidArgumentError(str_cat("bytes=", bytes, ", accepted: 0 or more"));
  }
  Buffer buffer;
  buffer.kind_ = kind;
  if (bytes > 0) {
    const std::string what =
        str_cat("allocating ", bytes, " bytes of ", kind_name(kind), " memory");
    PKV_RETURN_IF_ERROR(
        device->call(what, device->backend().memory_alloc, kind, bytes, &buffer.data_));
    buffer.bytes_ = bytes;
    buffer.device_ = std::move(device);
    if (reinterpret_cast<uintptr_t>(buffer.data_) % kAlignment != 0 || buffer.data_ == nullptr) {
      return absl::InternalError(str_cat(buffer.device_->backend().name, ": ", what,
                                         ": success, but the address is NULL or not aligned to ",
                                         kAlignment));
    }
  }
  return buffer;
}

Buffer::~Buffer() {
  if (data_ != nullptr) device_->backend().memory_free(device_->handle(), kind_, data_, bytes_);
}

}  // namespace pkv
