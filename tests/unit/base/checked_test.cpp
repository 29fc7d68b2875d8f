#include "core/base/checked.h"

#include <doctest/doctest.h>

#include <cstdint>

#include "tests/unit/base/check_text.h"

namespace pkv {
namespace {

constexpr int64_t kMax = INT64_MAX;
constexpr int64_t kMin = INT64_MIN;

TEST_CASE("checked: sums and products up to the edge of int64, and nothing beyond") {
  CHECK(checked_add(kMax - 1, 1) == kMax);
  CHECK_FALSE(checked_add(kMax, 1).has_value());
  CHECK(checked_add(kMin + 1, -1) == kMin);
  CHECK_FALSE(checked_add(kMin, -1).has_value());
  CHECK(checked_mul(int64_t{1} << 31, int64_t{1} << 31) == int64_t{1} << 62);
  CHECK_FALSE(checked_mul(int64_t{1} << 32, int64_t{1} << 31).has_value());
  CHECK(checked_mul(int64_t{1} << 32, -(int64_t{1} << 31)) == kMin);
  CHECK_FALSE(checked_mul(kMin, -1).has_value());
  CHECK(checked_mul(kMax, 0) == 0);
}

TEST_CASE("checked: rounding up to a step") {
  CHECK(checked_round_up(0, 256) == 0);
  CHECK(checked_round_up(1, 256) == 256);
  CHECK(checked_round_up(256, 256) == 256);
  CHECK(checked_round_up(257, 256) == 512);
  CHECK(checked_round_up(7, 1) == 7);
  CHECK(checked_round_up(kMax - 255, 256) == kMax - 255);
  CHECK_FALSE(checked_round_up(kMax - 254, 256).has_value());
}

TEST_CASE("checked: a product names what it is about and every size") {
  const auto product = [](int64_t tokens) {
    return checked_product("key records", {{"sequences", 16}, {"kv_heads", 8}, {"tokens", tokens}});
  };
  CHECK(*product(1048576) == 134217728);
  check_invalid(product(kMax).status(), {"key records too large: sequences=16 kv_heads=8 "
                                         "tokens=9223372036854775807"});
  check_invalid(product(-1).status(), {"key records negative:", "tokens=-1"});
}

TEST_CASE("checked: a zero size makes the product 0, wherever it stands") {
  CHECK(*checked_product("p", {{"a", kMax}, {"b", kMax}, {"c", 0}}) == 0);
  CHECK(*checked_product("p", {{"c", 0}, {"a", kMax}, {"b", kMax}}) == 0);
  CHECK(*checked_product("p", {}) == 1);
}

TEST_CASE("checked: a sum names what it is about and every size") {
  CHECK(*checked_sum("scratch", {{"votes", kMax - 2}, {"tables", 2}}) == kMax);
  CHECK(*checked_sum("scratch", {}) == 0);
  check_invalid(checked_sum("scratch", {{"votes", kMax - 2}, {"tables", 3}}).status(),
                {"scratch too large: votes=9223372036854775805 tables=3"});
  check_invalid(checked_sum("scratch", {{"votes", -2}, {"tables", 3}}).status(),
                {"scratch negative: votes=-2 tables=3"});
}

}  // namespace
}  // namespace pkv
