// JSON as the program prints it: members in the order in which they were added.
#pragma once

#include <optional>

#include "nlohmann/json.hpp"

namespace pkv::cli {

using Json = nlohmann::ordered_json;

inline Json number_or_null(std::optional<double> value) {
  return value ? Json(*value) : Json(nullptr);
}

}  // namespace pkv::cli
