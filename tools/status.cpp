#include "tools/status.h"

#include <system_error>

#include "pariskv/pariskv.h"

namespace pkv::cli {
namespace {

// One Abseil code stands for each exit code.
absl::StatusCode code_of(ExitCode code) {
  switch (code) {
    case kUsage: return absl::StatusCode::kInvalidArgument;
    case kBadInput: return absl::StatusCode::kDataLoss;
    case kNoBackend: return absl::StatusCode::kUnavailable;
    case kInterrupted: return absl::StatusCode::kCancelled;
    default: return absl::StatusCode::kInternal;
  }
}

ExitCode refusal(About about) {
  switch (about) {
    case About::kOptions: return kUsage;
    case About::kInput: return kBadInput;
    case About::kBackend: return kNoBackend;
    case About::kOutput: break;
  }
  return kSystem;
}

ExitCode exit_code_of(pkv_status status, About about) {
  switch (status) {
    case PKV_INVALID_ARGUMENT:
    case PKV_NOT_FOUND:
    case PKV_FAILED_PRECONDITION:
    case PKV_OUT_OF_RANGE: return refusal(about);
    case PKV_ALREADY_EXISTS: return kUsage;
    case PKV_DATA_LOSS: return kBadInput;
    case PKV_UNIMPLEMENTED: return kNoBackend;
    case PKV_UNAVAILABLE: return about == About::kBackend ? kNoBackend : kSystem;
    case PKV_CANCELLED: return kInterrupted;
    default: return kSystem;
  }
}

}  // namespace

ExitCode exit_code(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk: return kDone;
    case absl::StatusCode::kInvalidArgument: return kUsage;
    case absl::StatusCode::kDataLoss: return kBadInput;
    case absl::StatusCode::kUnavailable: return kNoBackend;
    case absl::StatusCode::kCancelled: return kInterrupted;
    default: return kSystem;
  }
}

absl::Status failure(ExitCode code, std::string_view text) {
  return absl::Status(code_of(code), absl::string_view(text.data(), text.size()));
}

absl::Status from_library(pkv_status status, About about, std::string_view subject) {
  if (status == PKV_OK) return absl::OkStatus();
  const char* text = pkv_last_error();
  if (subject.empty()) return failure(exit_code_of(status, about), text);
  return failure(exit_code_of(status, about), fmt::format("{}: {}", subject, text));
}

std::string system_text(int number) { return std::generic_category().message(number); }

}  // namespace pkv::cli
