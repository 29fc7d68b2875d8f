#include "core/pipeline/run_stage.h"

#include <algorithm>
#include <array>
#include <limits>

namespace pkv {
namespace {

constexpr int64_t kGuardBytes = 256;
constexpr uint8_t kGuard = 0xA5;

std::byte* guard_of(const Buffer& buffer, int64_t bytes) { return buffer.as<std::byte>() + bytes; }

}  // namespace

absl::StatusOr<GuardedScratch> GuardedScratch::create(const Stream& stream, int64_t bytes) {
  const bool has_guard = bytes > 0 && bytes <= std::numeric_limits<int64_t>::max() - kGuardBytes;
  PKV_ASSIGN_OR_RETURN(Buffer buffer, Buffer::create(stream.device(), PKV_MEMORY_DEVICE,
                                                     bytes + (has_guard ? kGuardBytes : 0)));
  if (has_guard) PKV_RETURN_IF_ERROR(stream.fill(guard_of(buffer, bytes), kGuard, kGuardBytes));
  return GuardedScratch(std::move(buffer), bytes);
}

absl::Status GuardedScratch::check(const Stream& stream, std::string_view what) const {
  std::array<uint8_t, kGuardBytes> guard;
  guard.fill(kGuard);
  absl::Status copied = absl::OkStatus();
  if (data() != nullptr) {
    copied = stream.copy(guard.data(), guard_of(buffer_, bytes_), kGuardBytes);
  }
  const absl::Status passed = stream.sync();
  if (!passed.ok()) return passed;
  if (!copied.ok()) return copied;
  const auto end = guard.end();
  if (std::find_if(guard.begin(), end, [](uint8_t byte) { return byte != kGuard; }) == end) {
    return absl::OkStatus();
  }
  return absl::InternalError(str_cat("the backend's ", what, " writes behind its scratch of ",
                                     bytes_, " bytes, which is what it asked for"));
}

}  // namespace pkv
