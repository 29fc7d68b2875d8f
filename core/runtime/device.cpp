#include "core/runtime/device.h"

#include <iterator>

#include "core/base/status.h"
#include "core/base/text.h"

namespace pkv {

absl::StatusOr<std::shared_ptr<const Device>> Device::open(const pkv_backend& backend,
                                                           std::shared_ptr<const Host> host,
                                                           int32_t ordinal) {
  const pkv_host* services = host->table();
  int32_t count = 0;
  clear_report();
  PKV_RETURN_IF_ERROR(
      backend_status(backend.device_count(services, &count), backend.name, "counting devices"));
  if (ordinal < 0 || ordinal >= count) {
    return absl::OutOfRangeError(
        str_cat(backend.name, ": ordinal=", ordinal,
                count > 0 ? str_cat(", accepted: 0..", count - 1) : ", but there is no device"));
  }

  // Made first, so that the handle has an owner from the beginning.
  std::shared_ptr<Device> device(new Device(backend, std::move(host)));
  const std::string what = str_cat("opening device ", ordinal);
  clear_report();
  PKV_RETURN_IF_ERROR(
      device->check(backend.device_open(services, ordinal, &device->handle_), what));
  if (device->handle_ == nullptr) {
    return absl::InternalError(str_cat(backend.name, ": ", what, ": success without a device"));
  }
  device->info_.struct_size = sizeof(device->info_);
  clear_report();
  PKV_RETURN_IF_ERROR(device->check(backend.device_info(services, ordinal, &device->info_), what));
  device->info_.name[std::size(device->info_.name) - 1] = '\0';
  return device;
}

Device::~Device() {
  if (handle_ != nullptr) backend_.device_close(handle_);
}

absl::Status Device::set(const char* name, const char* value) const {
  if (backend_.device_set == nullptr) {
    return absl::InvalidArgumentError(
        str_cat("option ", quote(name), ": the backend ", backend_.name, " has no options"));
  }
  return call("set", backend_.device_set, name, value);
}

absl::Status Device::set_parallel(const pkv_parallel* parallel) const {
  if (backend_.device_parallel == nullptr) {
    return absl::UnimplementedError(
        str_cat("the backend ", backend_.name, " takes no threads of a caller"));
  }
  if (parallel != nullptr && (parallel->run == nullptr) != (parallel->workers == nullptr)) {
    return absl::InvalidArgumentError(str_cat("parallel.",
                                              parallel->run == nullptr ? "run" : "workers",
                                              "=NULL, accepted: both or none of run and workers"));
  }
  return call("set_parallel", backend_.device_parallel, parallel);
}

// Not behind what a backend only refuses, and not while the stream records a graph, whose calls
// have not run.
void Device::wait_behind(pkv_status status, pkv_backend_stream* stream) const {
  const bool is_device_failure = status == PKV_UNAVAILABLE || status == PKV_RESOURCE_EXHAUSTED ||
                                 status == PKV_INTERNAL || status == PKV_CANCELLED;
  int32_t is_capturing = 0;
  if (!is_device_failure) return;
  if (backend_.stream_capturing != nullptr &&
      backend_.stream_capturing(handle_, stream, &is_capturing) == PKV_OK && is_capturing != 0) {
    return;
  }
  static_cast<void>(backend_.stream_sync(handle_, stream));
}

absl::Status Device::check(pkv_status status, std::string_view what) const {
  return backend_status(status, backend_.name, what);
}

}  // namespace pkv
