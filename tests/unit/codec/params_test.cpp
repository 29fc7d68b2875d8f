// Parameters of a codec, from stored numbers. docs/algorithm.md, section 2.
#include "core/codec/params.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <limits>
#include <span>
#include <vector>

#include "core/format/philox.h"
#include "tests/unit/base/check_text.h"
#include "tests/unit/codec/sample.h"

namespace pkv {
namespace {

// Numbers for the sample geometry: 2 KV heads, d = 24, dv = 16 with a sketch.
struct Numbers {
  pkv_geometry geometry = sample_geometry();
  std::vector<float> center = std::vector<float>(48);
  std::vector<float> balance = std::vector<float>(48, 1.0F);
  std::vector<float> value_center;

  Numbers() {
    for (std::size_t i = 0; i < 48; ++i) {
      center[i] = static_cast<float>(i) - 20.0F;
      balance[i] = 0.1F + static_cast<float>(i) * 0.3F;
    }
  }
  void sketch() {
    geometry.sketch_bits = 2;
    geometry.sketch_stride = 1;
    value_center.assign(32, 0.5F);
  }
  absl::StatusOr<CodecParams> create() const {
    return CodecParams::create(geometry, center, balance, value_center);
  }
};

std::vector<float> copy(std::span<const float> x) { return {x.begin(), x.end()}; }

std::vector<float> stream(uint32_t id, int count) {
  std::vector<float> out;
  for (int j = 0; j < count; ++j) {
    out.push_back(format::sign_element(sample_geometry().seed, id, j));
  }
  return out;
}

TEST_CASE("params: stored numbers stay, reciprocals are one fp32 division") {
  const Numbers numbers;
  const absl::StatusOr<CodecParams> params = numbers.create();
  REQUIRE(params.ok());
  CHECK(copy(params->center()) == numbers.center);
  CHECK(copy(params->balance()) == numbers.balance);
  for (std::size_t i = 0; i < 48; ++i) {
    CHECK(params->inv_balance()[i] == 1.0F / numbers.balance[i]);
  }
  CHECK(params->geometry().head_dim == 24);
}

TEST_CASE("params: sign vectors are the streams of the seed, those not used are absent") {
  Numbers numbers;  // d = 24: two blocks, so sigma_2 is used
  absl::StatusOr<CodecParams> params = numbers.create();
  REQUIRE(params.ok());
  CHECK(copy(params->signs_1()) == stream(format::kStreamKey1, 24));
  CHECK(copy(params->signs_2()) == stream(format::kStreamKey2, 24));
  CHECK(params->value_signs_1().empty());
  CHECK(params->value_signs_2().empty());

  numbers.sketch();  // dv = 16: a power of two, one round
  params = numbers.create();
  REQUIRE(params.ok());
  CHECK(copy(params->value_center()) == numbers.value_center);
  CHECK(copy(params->value_signs_1()) == stream(format::kStreamValue1, 16));
  CHECK(params->value_signs_2().empty());

  numbers.geometry.value_dim = 24;
  numbers.value_center.assign(48, 0.5F);
  params = numbers.create();
  REQUIRE(params.ok());
  CHECK(copy(params->value_signs_2()) == stream(format::kStreamValue2, 24));

  numbers.geometry.head_dim = 32;
  numbers.center.assign(64, 0.0F);
  numbers.balance.assign(64, 1.0F);
  params = numbers.create();
  REQUIRE(params.ok());
  CHECK(params->signs_2().empty());
  numbers.geometry.rounds = 2;
  params = numbers.create();
  REQUIRE(params.ok());
  CHECK(copy(params->signs_2()) == stream(format::kStreamKey2, 32));
}

TEST_CASE("params: arrays of another size are refused with both sizes") {
  Numbers numbers;
  numbers.center.pop_back();
  check_invalid(numbers.create().status(), {"center: 47 numbers, accepted: 48", "kv_heads=2"});
  numbers = Numbers();
  numbers.balance.push_back(1.0F);
  check_invalid(numbers.create().status(), {"balance: 49 numbers, accepted: 48"});
  numbers = Numbers();
  numbers.value_center.assign(32, 0.0F);
  check_invalid(numbers.create().status(), {"value_center: 32 numbers, accepted: 0"});
  numbers.sketch();
  numbers.value_center.clear();
  check_invalid(numbers.create().status(), {"value_center: 0 numbers, accepted: 32"});
}

TEST_CASE("params: numbers that would spoil every record are refused by head and coordinate") {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  const auto refuses = [](std::vector<float> Numbers::*array, std::size_t at, float value,
                          std::initializer_list<std::string_view> words) {
    Numbers numbers;
    numbers.sketch();
    (numbers.*array)[at] = value;
    check_invalid(numbers.create().status(), words);
  };
  refuses(&Numbers::center, 25, kNan, {"center[KV head 1, coordinate 1]=nan, accepted: finite"});
  refuses(&Numbers::center, 47, -kInf, {"center[KV head 1, coordinate 23]=-inf"});
  refuses(&Numbers::value_center, 17, kInf, {"value_center[KV head 1, coordinate 1]=inf"});
  refuses(&Numbers::balance, 0, 0.0F,
          {"balance[KV head 0, coordinate 0]=0, accepted: finite and > 0"});
  refuses(&Numbers::balance, 1, -1.0F, {"balance[KV head 0, coordinate 1]=-1"});
  refuses(&Numbers::balance, 2, kInf, {"balance[KV head 0, coordinate 2]=inf"});
  refuses(&Numbers::balance, 3, kNan, {"balance[KV head 0, coordinate 3]=nan"});
  refuses(&Numbers::balance, 4, 1e-39F, {"balance[KV head 0, coordinate 4]=", "reciprocal"});
}

TEST_CASE("params: the largest and smallest balance whose reciprocal is a number are accepted") {
  Numbers numbers;
  numbers.balance[0] = std::numeric_limits<float>::max();
  numbers.balance[1] = 0x1p-127F;
  CHECK(numbers.create().ok());
}

TEST_CASE("params: a geometry that is none is refused first") {
  Numbers numbers;
  numbers.geometry.head_dim = 20;
  check_invalid(numbers.create().status(), {"head_dim=20"});
}

TEST_CASE(
    "params: the view of a backend points at the numbers, and at nothing where there are none") {
  Numbers numbers;
  numbers.geometry.struct_size += 8;  // a newer caller's; ours is what a backend may read
  const absl::StatusOr<CodecParams> plain = numbers.create();
  REQUIRE(plain.ok());
  pkv_codec_params view = plain->view();
  CHECK(view.geometry == &plain->geometry());
  CHECK(view.geometry->struct_size == sizeof(pkv_geometry));
  CHECK(view.center == plain->center().data());
  CHECK(view.balance == plain->balance().data());
  CHECK(view.inv_balance == plain->inv_balance().data());
  CHECK(view.signs_1 == plain->signs_1().data());
  CHECK(view.signs_2 == plain->signs_2().data());
  CHECK(view.value_center == nullptr);
  CHECK(view.value_signs_1 == nullptr);
  CHECK(view.value_signs_2 == nullptr);

  numbers.sketch();
  const absl::StatusOr<CodecParams> sketched = numbers.create();
  REQUIRE(sketched.ok());
  view = sketched->view();
  CHECK(view.value_center == sketched->value_center().data());
  CHECK(view.value_signs_1 == sketched->value_signs_1().data());
  CHECK(view.value_signs_2 == nullptr);
}

TEST_CASE("params: a copy has numbers of its own") {
  const Numbers numbers;
  const absl::StatusOr<CodecParams> params = numbers.create();
  REQUIRE(params.ok());
  const CodecParams other = *params;
  CHECK(other.view().center != params->view().center);
  CHECK(copy(other.center()) == numbers.center);
}

}  // namespace
}  // namespace pkv
