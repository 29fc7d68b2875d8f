#include "core/runtime/stream.h"

#include <string_view>

#include "core/base/status.h"
#include "core/base/text.h"

namespace pkv {
namespace {

absl::Status check_bytes(int64_t bytes) {
  if (bytes >= 0) return absl::OkStatus();
  return absl::InvalidArgumentError(str_cat("bytes=", bytes, ", accepted: 0 or more"));
}

absl::Status check_made(const void* handle, const Device& device, std::string_view what) {
  if (handle != nullptr) return absl::OkStatus();
  return absl::InternalError(
      str_cat(device.backend().name, ": ", what, ": success without a handle"));
}

absl::Status check_same_device(const Device& event, const Device& stream) {
  if (&event == &stream) return absl::OkStatus();
  return absl::InvalidArgumentError(
      str_cat("stream belongs to a device (", stream.backend().name, ", ", stream.name(),
              ") opened apart from the event's (", event.backend().name, ", ", event.name(), ")"));
}

}  // namespace

absl::StatusOr<Stream> Stream::create(std::shared_ptr<const Device> device) {
  Stream stream;
  stream.device_ = std::move(device);
  const Device& owner = *stream.device_;
  PKV_RETURN_IF_ERROR(
      owner.call("creating a stream", owner.backend().stream_create, &stream.handle_));
  PKV_RETURN_IF_ERROR(check_made(stream.handle_, owner, "creating a stream"));
  return stream;
}

absl::StatusOr<Stream> Stream::wrap(std::shared_ptr<const Device> device, uintptr_t native) {
  Stream stream;
  stream.device_ = std::move(device);
  const Device& owner = *stream.device_;
  PKV_RETURN_IF_ERROR(
      owner.call("wrapping a stream", owner.backend().stream_wrap, native, &stream.handle_));
  PKV_RETURN_IF_ERROR(check_made(stream.handle_, owner, "wrapping a stream"));
  return stream;
}

Stream::~Stream() {
  if (handle_ != nullptr) device_->backend().stream_destroy(device_->handle(), handle_);
}

absl::Status Stream::check_device(const std::shared_ptr<const Device>& device,
                                  std::string_view whose) const {
  if (device_ == device) return absl::OkStatus();
  return absl::InvalidArgumentError(
      str_cat("stream belongs to another device, accepted: one of the device ", whose));
}

absl::Status Stream::sync() const {
  return device_->call("waiting for a stream", device_->backend().stream_sync, handle_);
}

void Stream::wait() const noexcept {
  static_cast<void>(device_->backend().stream_sync(device_->handle(), handle_));
}

absl::Status Stream::copy(void* target, const void* source, int64_t bytes) const {
  PKV_RETURN_IF_ERROR(check_bytes(bytes));
  if (bytes == 0) return absl::OkStatus();
  return device_->call("copying memory", device_->backend().memory_copy, handle_, target, source,
                       bytes);
}

absl::Status Stream::fill(void* target, uint8_t byte, int64_t bytes) const {
  PKV_RETURN_IF_ERROR(check_bytes(bytes));
  if (bytes == 0) return absl::OkStatus();
  return device_->call("filling memory", device_->backend().memory_fill, handle_, target,
                       int32_t{byte}, bytes);
}

absl::StatusOr<Event> Event::create(std::shared_ptr<const Device> device) {
  Event event;
  event.device_ = std::move(device);
  const Device& owner = *event.device_;
  PKV_RETURN_IF_ERROR(
      owner.call("creating an event", owner.backend().event_create, &event.handle_));
  PKV_RETURN_IF_ERROR(check_made(event.handle_, owner, "creating an event"));
  return event;
}

Event::~Event() {
  if (handle_ != nullptr) device_->backend().event_destroy(device_->handle(), handle_);
}

absl::Status Event::record(const Stream& stream) const {
  PKV_RETURN_IF_ERROR(check_same_device(*device_, *stream.device()));
  return device_->call("recording an event", device_->backend().event_record, stream.handle(),
                       handle_);
}

absl::Status Event::wait(const Stream& stream) const {
  PKV_RETURN_IF_ERROR(check_same_device(*device_, *stream.device()));
  return device_->call("waiting for an event", device_->backend().event_wait, stream.handle(),
                       handle_);
}

}  // namespace pkv
