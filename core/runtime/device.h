// An open device of a backend, and how its table is called. Not here: memory (buffer.h), streams
// (stream.h), which backends there are (registry.h).
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/runtime/host.h"
#include "pariskv/pariskv_backend.h"

namespace pkv {

// Held by shared_ptr by all that was made from it, so it closes with its last user. Everything is
// const: the backend behind it takes calls from several threads at once.
class Device {
 public:
  // `backend`: valid until the process ends. The device keeps `host`.
  // OUT_OF_RANGE: ordinal not in 0..device_count-1.
  static absl::StatusOr<std::shared_ptr<const Device>> open(const pkv_backend& backend,
                                                            std::shared_ptr<const Host> host,
                                                            int32_t ordinal);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  const pkv_backend& backend() const { return backend_; }
  pkv_backend_device* handle() const { return handle_; }
  const pkv_backend_device_info& info() const { return info_; }
  std::string_view name() const { return info_.name; }  // e.g. the model of the processor
  const Host& host() const { return *host_; }

  // An option of the backend. INVALID_ARGUMENT: it lacks the option, or refuses the value.
  absl::Status set(const char* name, const char* value) const;
  // Checked, then copied by the backend. NULL: its own threads again. UNIMPLEMENTED: it has none.
  absl::Status set_parallel(const pkv_parallel* parallel) const;

  // Calls a slot with handle() and then `args`. On anything but PKV_OK the status carries the text
  // that the backend reported, after the backend's name and `what`: "cpu_ref: vote: ...".
  //   device.call("copy", device.backend().memory_copy, stream, target, source, bytes)
  // Where the call of a stream fails, what was enqueued before it has been waited for: it may use
  // memory that goes when the failure is handed on.
  template <class... Params, class... Args>
  absl::Status call(std::string_view what, pkv_status (*slot)(pkv_backend_device*, Params...),
                    Args&&... args) const {
    clear_report();
    const pkv_status status = slot(handle_, std::forward<Args>(args)...);
    if (status == PKV_OK) return absl::OkStatus();
    const absl::Status failure = check(status, what);
    if constexpr (sizeof...(Params) > 0) {
      using First = std::tuple_element_t<0, std::tuple<Params...>>;
      if constexpr (std::is_same_v<First, pkv_backend_stream*>) {
        wait_behind(status, std::get<0>(std::tie(args...)));
      }
    }
    return failure;
  }

  // The second half of call, for a slot that was called after clear_report() (host.h).
  absl::Status check(pkv_status status, std::string_view what) const;

 private:
  void wait_behind(pkv_status status, pkv_backend_stream* stream) const;

  Device(const pkv_backend& backend, std::shared_ptr<const Host> host)
      : backend_(backend), host_(std::move(host)) {}

  const pkv_backend& backend_;
  std::shared_ptr<const Host> host_;
  pkv_backend_device* handle_ = nullptr;
  pkv_backend_device_info info_{};
};

}  // namespace pkv
