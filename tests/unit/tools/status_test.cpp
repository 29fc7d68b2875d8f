#include "tools/status.h"

#include <doctest/doctest.h>

#include <string>
#include <string_view>

#include "pariskv/pariskv.h"

namespace pkv::cli {
namespace {

TEST_CASE("status: every exit code goes into a status and comes out again") {
  for (const ExitCode code : {kUsage, kBadInput, kNoBackend, kSystem, kInterrupted}) {
    CHECK(exit_code(failure(code, "text")) == code);
  }
  CHECK(exit_code(absl::OkStatus()) == kDone);
  CHECK(exit_code(absl::UnknownError("")) == kSystem);
}

TEST_CASE("status: what would steer a terminal, or is no UTF-8, is shown as numbers, and cut") {
  const auto text = [](std::string_view given) {
    return std::string(input_error("{}", given).message());
  };
  CHECK(text("tensor \xe2\x82\xac\nnext") == "tensor \xe2\x82\xac\nnext");
  CHECK(text("\x1b[2Jk\x7f\r") == "\\x1b[2Jk\\x7f\\x0d");
  CHECK(text("\xc2\x9b"
             "0m") == "\\xc2\\x9b0m");
  CHECK(text("\xe4\xed\xa0\x80\xf4\x90\x80\x80\xe2\x82") ==
        "\\xe4\\xed\\xa0\\x80\\xf4\\x90\\x80\\x80\\xe2\\x82");
  const std::string cut = text(std::string(100000, 'x'));
  CHECK(cut.size() < 4000);
  CHECK(cut.substr(cut.size() - 3) == "...");
}

TEST_CASE("status: a refusal of the library is the fault of what the call was about") {
  struct Case {
    pkv_status status;
    About about;
    ExitCode code;
  };
  const Case cases[] = {
      {PKV_INVALID_ARGUMENT, About::kOptions, kUsage},
      {PKV_INVALID_ARGUMENT, About::kInput, kBadInput},
      {PKV_NOT_FOUND, About::kBackend, kNoBackend},
      {PKV_NOT_FOUND, About::kInput, kBadInput},
      {PKV_INVALID_ARGUMENT, About::kOutput, kSystem},
      {PKV_ALREADY_EXISTS, About::kOutput, kUsage},
      {PKV_FAILED_PRECONDITION, About::kInput, kBadInput},
      {PKV_DATA_LOSS, About::kOptions, kBadInput},
      {PKV_UNIMPLEMENTED, About::kInput, kNoBackend},
      {PKV_UNAVAILABLE, About::kBackend, kNoBackend},
      {PKV_UNAVAILABLE, About::kInput, kSystem},  // a device lost in the midst
      {PKV_RESOURCE_EXHAUSTED, About::kInput, kSystem},
      {PKV_INTERNAL, About::kOptions, kSystem},
      {PKV_CANCELLED, About::kInput, kInterrupted},
  };
  for (const Case& c : cases) {
    CHECK(exit_code(from_library(c.status, c.about)) == c.code);
  }
  CHECK(from_library(PKV_OK, About::kInput).ok());
}

TEST_CASE("status: the library's text stands behind the subject") {
  pkv_config* config = nullptr;
  const pkv_status status = pkv_config_create("fast", &config);
  const absl::Status failed = from_library(status, About::kOptions, "--profile");
  CHECK(failed.message().find("--profile: ") == 0);
  CHECK(failed.message().find("fast") != absl::string_view::npos);
}

}  // namespace
}  // namespace pkv::cli
