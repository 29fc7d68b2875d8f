#include "core/base/status.h"

#include <cstddef>
#include <cstring>
#include <string>

#include "core/base/text.h"

namespace pkv {
namespace {

// The one thread_local of the library: no destructor, so any thread may end at any time.
thread_local char last_error_text[kLastErrorBytes] = "";

}  // namespace

pkv_status to_pkv(absl::StatusCode code) noexcept {
  const auto number = static_cast<pkv_status>(code);
  return std::strcmp(status_name(number), "UNKNOWN") == 0 ? PKV_INTERNAL : number;
}

absl::Status from_pkv(pkv_status number, std::string_view text) {
  if (std::strcmp(status_name(number), "UNKNOWN") == 0) {
    return absl::InternalError(
        str_cat("status ", number, " is none of the known ones", text.empty() ? "" : ": ", text));
  }
  return absl::Status(static_cast<absl::StatusCode>(number), to_absl(text));
}

const char* status_name(pkv_status number) noexcept {
  switch (number) {
    case PKV_OK: return "OK";
    case PKV_CANCELLED: return "CANCELLED";
    case PKV_INVALID_ARGUMENT: return "INVALID_ARGUMENT";
    case PKV_NOT_FOUND: return "NOT_FOUND";
    case PKV_ALREADY_EXISTS: return "ALREADY_EXISTS";
    case PKV_RESOURCE_EXHAUSTED: return "RESOURCE_EXHAUSTED";
    case PKV_FAILED_PRECONDITION: return "FAILED_PRECONDITION";
    case PKV_ABORTED: return "ABORTED";
    case PKV_OUT_OF_RANGE: return "OUT_OF_RANGE";
    case PKV_UNIMPLEMENTED: return "UNIMPLEMENTED";
    case PKV_INTERNAL: return "INTERNAL";
    case PKV_UNAVAILABLE: return "UNAVAILABLE";
    case PKV_DATA_LOSS: return "DATA_LOSS";
    default: return "UNKNOWN";
  }
}

const char* last_error() noexcept { return last_error_text; }

void set_last_error(std::string_view text) noexcept {
  const std::size_t length = utf8_cut(text, kLastErrorBytes - 1);
  // The text may be (part of) the buffer itself.
  if (length > 0) std::memmove(last_error_text, text.data(), length);
  last_error_text[length] = '\0';
  make_plain({last_error_text, length});
}

pkv_status report(const absl::Status& status) noexcept {
  if (!status.ok()) set_last_error(to_std(status.message()));
  return to_pkv(status.code());
}

}  // namespace pkv
