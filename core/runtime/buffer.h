// Device memory that frees itself.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "core/runtime/device.h"

namespace pkv {

// Move-only. Freed on destruction; the owner makes sure that no enqueued work uses it any more.
class Buffer {
 public:
  Buffer() = default;
  // kind: PKV_MEMORY_*. Contents are undefined, data is aligned to 256. bytes = 0 gives null data.
  // INVALID_ARGUMENT: kind, bytes < 0. RESOURCE_EXHAUSTED names bytes and kind.
  static absl::StatusOr<Buffer> create(std::shared_ptr<const Device> device, int32_t kind,
                                       int64_t bytes);
  ~Buffer();
  Buffer(Buffer&& other) noexcept { swap(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    Buffer(std::move(other)).swap(*this);
    return *this;
  }

  void* data() const { return data_; }
  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  int64_t bytes() const { return bytes_; }
  int32_t kind() const { return kind_; }

  void swap(Buffer& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(kind_, other.kind_);
  }

 private:
  std::shared_ptr<const Device> device_;
  void* data_ = nullptr;
  int64_t bytes_ = 0;
  int32_t kind_ = 0;
};

}  // namespace pkv
