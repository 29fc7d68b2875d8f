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

}  // namespace pkv

// Leaves the body with INVALID_ARGUMENT if the argument, written as in the header, is NULL.
#define PKV_REQUIRE(argument)                                          \
  do {                                                                 \
    if ((argument) == nullptr) return ::pkv::null_argument(#argument); \
  } while (false)
