// Sums and products of sizes that cannot wrap. Everything that becomes a number of bytes, an offset
// or an allocation goes through here.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string_view>

#include "absl/status/statusor.h"

namespace pkv {

// The exact result, or nothing where it does not fit an int64.
constexpr std::optional<int64_t> checked_add(int64_t a, int64_t b) {
  int64_t sum = 0;
  if (__builtin_add_overflow(a, b, &sum)) return std::nullopt;
  return sum;
}

constexpr std::optional<int64_t> checked_mul(int64_t a, int64_t b) {
  int64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) return std::nullopt;
  return product;
}

// `value` >= 0 up to the next multiple of `step` >= 1.
constexpr std::optional<int64_t> checked_round_up(int64_t value, int64_t step) {
  const std::optional<int64_t> raised = checked_add(value, step - 1);
  if (!raised) return std::nullopt;
  return *raised - *raised % step;
}

// Buffers begin at multiples of this, and so do the pieces of one buffer.
inline constexpr int64_t kAlignment = 256;

// Of what was checked before: `value` >= 0 up to the next multiple of `step` >= 1.
constexpr int64_t round_up(int64_t value, int64_t step) { return (value + step - 1) / step * step; }
constexpr int64_t padded(int64_t bytes) { return round_up(bytes, kAlignment); }

// A size and what a caller calls it.
struct Named {
  std::string_view name;
  int64_t value;
};

// The product or sum of sizes >= 0. Where it passes 2^63 - 1, or a size is negative,
// INVALID_ARGUMENT: "key records too large: sequences=16 kv_heads=8 tokens=1048576 head_dim=128".
absl::StatusOr<int64_t> checked_product(std::string_view what, std::initializer_list<Named> sizes);
absl::StatusOr<int64_t> checked_sum(std::string_view what, std::initializer_list<Named> sizes);

}  // namespace pkv
