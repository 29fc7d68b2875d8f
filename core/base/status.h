// Outcomes: absl::Status inside, pkv_status and a text per thread outside.
// The numbers of both are equal, so translating keeps them. What each one means stands in
// pariskv_types.h.
#pragma once

#include <new>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "pariskv/pariskv_types.h"

namespace pkv {

// Bytes of the last-error text, its NUL included; longer texts are cut between two characters.
inline constexpr int kLastErrorBytes = 2048;

// The number of a status; codes that the C API does not have become PKV_INTERNAL.
pkv_status to_pkv(absl::StatusCode code) noexcept;

// The status for a number that came from outside, such as a backend's. A number that is none
// becomes INTERNAL, with the number in its text. PKV_OK gives OK and drops the text.
absl::Status from_pkv(pkv_status number, std::string_view text);

// "INVALID_ARGUMENT" and the like; "UNKNOWN" for a number that is no status.
const char* status_name(pkv_status number) noexcept;

// The calling thread's text, UTF-8, ends in NUL; "" before the first error.
const char* last_error() noexcept;
void set_last_error(std::string_view text) noexcept;

// What an exported function returns: the number, with the text left for last_error. OK leaves the
// text alone.
pkv_status report(const absl::Status& status) noexcept;

// What `body` gives, or RESOURCE_EXHAUSTED where it finds no memory: for changes that have to be
// taken back then. Without a text, which would take memory too.
template <class Body>
absl::Status within_memory(Body&& body) {
  try {
    return std::forward<Body>(body)();
  } catch (const std::bad_alloc&) {
    return absl::Status(absl::StatusCode::kResourceExhausted, "");
  }
}

}  // namespace pkv

// Returns from the enclosing function if `expression`, an absl::Status, is not OK.
#define PKV_RETURN_IF_ERROR(expression)                               \
  do {                                                                \
    if (absl::Status pkv_status_ = (expression); !pkv_status_.ok()) { \
      return pkv_status_;                                             \
    }                                                                 \
  } while (false)

// `target` = the value of `expression`, an absl::StatusOr, or returns its status. Two statements,
// so not the body of an if without braces.
#define PKV_ASSIGN_OR_RETURN(target, expression) \
  PKV_ASSIGN_OR_RETURN_IMPL(PKV_CONCAT(pkv_status_or_, __LINE__), target, expression)
// NOLINTBEGIN(bugprone-macro-parentheses): `target` may be a declaration.
#define PKV_ASSIGN_OR_RETURN_IMPL(status_or, target, expression) \
  auto status_or = (expression);                                 \
  if (!status_or.ok()) return std::move(status_or).status();     \
  target = std::move(status_or).value()
// NOLINTEND(bugprone-macro-parentheses)
#define PKV_CONCAT(a, b) PKV_CONCAT_IMPL(a, b)
#define PKV_CONCAT_IMPL(a, b) a##b
