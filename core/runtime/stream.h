// Streams and events of a device.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/runtime/device.h"

namespace pkv {

// Move-only. Work enqueued here runs in order.
class Stream {
 public:
  static absl::StatusOr<Stream> create(std::shared_ptr<const Device> device);
  // Borrows the vendor's handle; 0 is its default stream.
  static absl::StatusOr<Stream> wrap(std::shared_ptr<const Device> device, uintptr_t native);
  ~Stream();
  Stream(Stream&& other) noexcept { swap(other); }
  Stream& operator=(Stream&& other) noexcept {
    Stream(std::move(other)).swap(*this);
    return *this;
  }

  const std::shared_ptr<const Device>& device() const { return device_; }
  pkv_backend_stream* handle() const { return handle_; }

  // INVALID_ARGUMENT unless the stream is of `device`, the one of `whose`: "the index".
  absl::Status check_device(const std::shared_ptr<const Device>& device,
                            std::string_view whose) const;

  // Waits; reports failures of enqueued work.
  absl::Status sync() const;
  // The same where nobody can be told.
  void wait() const noexcept;
  // Enqueued. Between any two of device and host memory; host memory stays valid until the stream
  // has passed. bytes = 0 does nothing, whatever the pointers.
  absl::Status copy(void* target, const void* source, int64_t bytes) const;
  absl::Status fill(void* target, uint8_t byte, int64_t bytes) const;

  void swap(Stream& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(handle_, other.handle_);
  }

 private:
  Stream() = default;

  std::shared_ptr<const Device> device_;
  pkv_backend_stream* handle_ = nullptr;
};

// Stands in a scope behind memory that enqueued work uses and that goes with the scope. Waits where
// the scope is left, whatever for: a backend's call of the stream that fails has been waited for
// (device.h), but memory that is refused, or a stage, has not.
class WaitAtEnd {
 public:
  explicit WaitAtEnd(const Stream& stream) : stream_(stream) {}
  ~WaitAtEnd() { stream_.wait(); }
  WaitAtEnd(const WaitAtEnd&) = delete;
  WaitAtEnd& operator=(const WaitAtEnd&) = delete;

 private:
  const Stream& stream_;
};

// Move-only. Marks a point of one stream that another one, of the same device, can wait for.
class Event {
 public:
  static absl::StatusOr<Event> create(std::shared_ptr<const Device> device);
  ~Event();
  Event(Event&& other) noexcept { swap(other); }
  Event& operator=(Event&& other) noexcept {
    Event(std::move(other)).swap(*this);
    return *this;
  }

  const std::shared_ptr<const Device>& device() const { return device_; }

  // INVALID_ARGUMENT: the stream belongs to another device.
  absl::Status record(const Stream& stream) const;
  absl::Status wait(const Stream& stream) const;

  void swap(Event& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(handle_, other.handle_);
  }

 private:
  Event() = default;

  std::shared_ptr<const Device> device_;
  pkv_backend_event* handle_ = nullptr;
};

}  // namespace pkv
