// The exception firewall that every exported function runs in: a status and its text go out,
// nothing is thrown.
//
//   pkv_status pkv_thing_create(pkv_device *device, int32_t n, pkv_thing **out) {
//     return pkv::guard(__func__, [&]() -> absl::Status {
//       PKV_REQUIRE(out);
//       *out = nullptr;
//       PKV_REQUIRE(device);
//       PKV_ASSIGN_OR_RETURN(pkv::Thing thing, pkv::Thing::create(device->device, n));
//       *out = new pkv_thing{std::move(thing)};
//       return absl::OkStatus();
//     });
//   }
#pragma once

#include <utility>

#include "absl/status/status.h"
#include "pariskv/pariskv_types.h"

namespace pkv {

// The number of a status that is not OK; leaves "<function>: <message>" for pkv_last_error().
pkv_status report_failure(const char* function, const absl::Status& status) noexcept;
// The same for the exception that is being handled.
pkv_status report_exception(const char* function) noexcept;

template <class Body>
pkv_status guard(const char* function, Body&& body) noexcept {
  try {
    const absl::Status status = std::forward<Body>(body)();
    return status.ok() ? PKV_OK : report_failure(function, status);
  } catch (...) {
    return report_exception(function);
  }
}

absl::Status null_argument(const char* name);
absl::Status forked_argument(const char* name);

// Objects with a device know where they were made (core/base/process.h).
template <class Pointer>
bool is_of_this_process(const Pointer& pointer) noexcept {
  if constexpr (requires { pointer->birth.is_here(); }) {
    return pointer->birth.is_here();
  } else {
    return true;
  }
}

// For pkv_thing_destroy. What the child of a fork has is a copy with the parent's device: left.
template <class Handle>
void destroy(Handle* handle) noexcept {
  if (handle != nullptr && is_of_this_process(handle)) delete handle;
}

}  // namespace pkv

// Leaves the body with INVALID_ARGUMENT if the argument, written as in the header, is NULL, with
// FAILED_PRECONDITION if it is an object of the process that this one was forked from.
#define PKV_REQUIRE(argument)                                                           \
  do {                                                                                  \
    if ((argument) == nullptr) return ::pkv::null_argument(#argument);                  \
    if (!::pkv::is_of_this_process(argument)) return ::pkv::forked_argument(#argument); \
  } while (false)
