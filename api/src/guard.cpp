#include "api/src/guard.h"

#include <cstdio>
#include <exception>
#include <new>
#include <string_view>

#include "core/base/status.h"
#include "core/base/text.h"

namespace pkv {
namespace {

// On the stack: there may be no memory left.
void leave_text(const char* function, std::string_view message) noexcept {
  char text[kLastErrorBytes + 8];  // longer than what is kept: cutting is left to set_last_error
  std::snprintf(text, sizeof(text), "%s: %.*s", function, static_cast<int>(message.size()),
                message.data());
  set_last_error(text);
}

}  // namespace

pkv_status report_failure(const char* function, const absl::Status& status) noexcept {
  const std::string_view message = to_std(status.message());
  leave_text(function, message.empty() ? "out of host memory" : message);  // within_memory
  return to_pkv(status.code());
}

pkv_status report_exception(const char* function) noexcept {
  try {
    throw;
  } catch (const std::bad_alloc&) {
    leave_text(function, "out of host memory");
    return PKV_RESOURCE_EXHAUSTED;
  } catch (const std::exception& error) {
    leave_text(function, error.what());
  } catch (...) {
    leave_text(function, "an exception of unknown type");
  }
  return PKV_INTERNAL;
}

absl::Status null_argument(const char* name) {
  return absl::InvalidArgumentError(str_cat(name, " is NULL"));
}

absl::Status forked_argument(const char* name) {
  return absl::FailedPreconditionError(
      str_cat(name,
              " was made in the process that this one was forked from, accepted: objects of a "
              "runtime that was created behind the fork"));
}

}  // namespace pkv
