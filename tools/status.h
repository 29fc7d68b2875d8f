// Outcomes of the program: absl::Status inside, an exit code outside. docs/cli.md lists the codes.
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fmt/format.h"
#include "pariskv/pariskv_types.h"

namespace pkv::cli {

enum ExitCode : int {
  kDone = 0,
  kBelow = 1,      // the result is below what was asked for
  kUsage = 2,      // the command line
  kBadInput = 3,   // a file that was read
  kNoBackend = 4,  // a backend that is not here, or lacks the shape
  kSystem = 5,     // disk, memory, device
  kInterrupted = 130,
};

ExitCode exit_code(const absl::Status& status);

// A status for each exit code; texts name the value and what is accepted.
absl::Status failure(ExitCode code, std::string_view text);
template <class... Args>
absl::Status usage_error(fmt::format_string<Args...> format, Args&&... args) {
  return failure(kUsage, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
absl::Status input_error(fmt::format_string<Args...> format, Args&&... args) {
  return failure(kBadInput, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
absl::Status system_error(fmt::format_string<Args...> format, Args&&... args) {
  return failure(kSystem, fmt::format(format, std::forward<Args>(args)...));
}

// What a call of the library was about, and so whose fault it is that it refused a value.
enum class About { kOptions, kInput, kBackend, kOutput };
// OK, or pkv_last_error() behind `subject`, say a file's name; "" for none.
absl::Status from_library(pkv_status status, About about, std::string_view subject = "");

// Text of the system's error `number`.
std::string system_text(int number);

}  // namespace pkv::cli

// Returns from the enclosing function if `expression`, an absl::Status, is not OK.
#define CLI_RETURN_IF_ERROR(expression)                               \
  do {                                                                \
    if (absl::Status cli_status_ = (expression); !cli_status_.ok()) { \
      return cli_status_;                                             \
    }                                                                 \
  } while (false)

// `target` = the value of `expression`, an absl::StatusOr, or returns its status. Two statements,
// so not the body of an if without braces.
#define CLI_ASSIGN_OR_RETURN(target, expression) \
  CLI_ASSIGN_OR_RETURN_IMPL(CLI_CONCAT(cli_status_or_, __LINE__), target, expression)
// NOLINTBEGIN(bugprone-macro-parentheses): `target` may be a declaration.
#define CLI_ASSIGN_OR_RETURN_IMPL(status_or, target, expression) \
  auto status_or = (expression);                                 \
  if (!status_or.ok()) return std::move(status_or).status();     \
  target = std::move(status_or).value()
// NOLINTEND(bugprone-macro-parentheses)
#define CLI_CONCAT(a, b) CLI_CONCAT_IMPL(a, b)
#define CLI_CONCAT_IMPL(a, b) a##b
