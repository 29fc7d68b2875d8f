#include "api/src/guard.h"

#include <doctest/doctest.h>

#include <new>
#include <stdexcept>
#include <string>

#include "core/base/status.h"

namespace pkv {
namespace {

pkv_status throwing(int what) {
  return guard("pkv_call", [&]() -> absl::Status {
    if (what == 0) throw std::bad_alloc();
    if (what == 1) throw std::length_error("too long");
    throw 7;
  });
}

TEST_CASE("guard: OK leaves the last error alone") {
  set_last_error("before");
  CHECK(guard("pkv_call", [] { return absl::OkStatus(); }) == PKV_OK);
  CHECK(std::string(last_error()) == "before");
}

TEST_CASE("guard: a status becomes its number, its text is kept behind the function's name") {
  CHECK(guard("pkv_call", [] { return absl::DataLossError("byte 7"); }) == PKV_DATA_LOSS);
  CHECK(std::string(last_error()) == "pkv_call: byte 7");
  CHECK(guard("pkv_call", [] { return absl::UnknownError("odd"); }) == PKV_INTERNAL);
}

TEST_CASE("guard: exceptions stay inside") {
  CHECK(throwing(0) == PKV_RESOURCE_EXHAUSTED);
  CHECK(std::string(last_error()) == "pkv_call: out of host memory");
  CHECK(throwing(1) == PKV_INTERNAL);
  CHECK(std::string(last_error()) == "pkv_call: too long");
  CHECK(throwing(2) == PKV_INTERNAL);
  CHECK(std::string(last_error()) == "pkv_call: an exception of unknown type");
}

TEST_CASE("guard: a text that is too long is cut between two characters") {
  std::string text;
  while (text.size() < 3000) text += "\xc3\xa9";  // two bytes each
  CHECK(guard("pkv_call", [&] { return absl::InternalError(text); }) == PKV_INTERNAL);
  const std::string kept = last_error();
  CHECK(kept.size() == 2046);  // "pkv_call: " and whole characters: of the 2,047 one byte is left
  CHECK(kept.substr(kept.size() - 2) == "\xc3\xa9");
}

TEST_CASE("guard: a NULL argument is named") {
  int* const out = nullptr;
  const auto call = [&]() -> absl::Status {
    PKV_REQUIRE(out);
    return absl::OkStatus();
  };
  CHECK(guard("pkv_call", call) == PKV_INVALID_ARGUMENT);
  CHECK(std::string(last_error()) == "pkv_call: out is NULL");
}

}  // namespace
}  // namespace pkv
