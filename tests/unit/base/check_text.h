// What a test says about a refusal: its code and the words that must stand in its text.
#pragma once

#include <doctest/doctest.h>

#include <initializer_list>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "core/base/text.h"

namespace pkv {

inline void check_refusal(const absl::Status& status, absl::StatusCode code,
                          std::initializer_list<std::string_view> words) {
  CHECK(status.code() == code);
  const std::string text(to_std(status.message()));
  for (const std::string_view word : words) {
    CAPTURE(text);
    CAPTURE(std::string(word));
    CHECK(text.find(word) != std::string::npos);
  }
}

inline void check_invalid(const absl::Status& status,
                          std::initializer_list<std::string_view> words) {
  check_refusal(status, absl::StatusCode::kInvalidArgument, words);
}

}  // namespace pkv
