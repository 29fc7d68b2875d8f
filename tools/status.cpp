#include "tools/status.h"

#include <algorithm>
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

constexpr size_t kMostText = 3000;

// Bytes of the UTF-8 character that `text` begins with; 0 where none does, or one that a terminal
// takes for an order (C0 and C1 controls, but for line ends).
size_t plain_bytes(std::string_view text) {
  const auto byte = [text](size_t i) {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : 0U;
  };
  const unsigned first = byte(0);
  if (first < 0x80) return first == '\n' || (first >= 0x20 && first != 0x7f) ? 1 : 0;
  const size_t bytes = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4) return 0;
  for (size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  const unsigned second = byte(1);
  const bool is_odd = (first == 0xc2 && second < 0xa0) || (first == 0xe0 && second < 0xa0) ||
                      (first == 0xed && second > 0x9f) || (first == 0xf0 && second < 0x90) ||
                      (first == 0xf4 && second > 0x8f);
  return is_odd ? 0 : bytes;
}

// Names in a file, and parts of a command line, are anybody's: what would steer a terminal, or is
// no UTF-8, becomes \xNN, and what is too long for a message ends in "...".
std::string plain(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    if (out.size() > kMostText) return out + "...";
    const size_t bytes = plain_bytes(text);
    if (bytes == 0) {
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(text.front()));
    } else {
      out += text.substr(0, bytes);
    }
    text.remove_prefix(std::max<size_t>(bytes, 1));
  }
  return out;
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
  return absl::Status(code_of(code), plain(text));
}

absl::Status from_library(pkv_status status, About about, std::string_view subject) {
  if (status == PKV_OK) return absl::OkStatus();
  const char* text = pkv_last_error();
  if (subject.empty()) return failure(exit_code_of(status, about), text);
  return failure(exit_code_of(status, about), fmt::format("{}: {}", subject, text));
}

std::string system_text(int number) { return std::generic_category().message(number); }

}  // namespace pkv::cli
