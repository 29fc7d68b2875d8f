// Element types and the arithmetic of exact rules. docs/numerics.md, section 2.
#include "backends/gpu/gpu_vec.cuh"

#include <cmath>
#include <limits>

#include "doctest/doctest.h"

namespace pkv::gpu_host {
namespace {

TEST_CASE("vec: a product and a sum round twice") {
  const float a = 1.0F + 0x1p-12F;
  const float product = fmul_rn(a, a);  // 1 + 2^-11 + 2^-24: the last place is a tie, to even
  CHECK(product == 1.0F + 0x1p-11F);
  CHECK(fadd_rn(fmul_rn(a, a), -1.0F) == 0x1p-11F);
  CHECK(std::fma(a, a, -1.0F) != 0x1p-11F);
}

TEST_CASE("vec: rint goes to even, division and root are rounded") {
  CHECK(frint(2.5F) == 2.0F);
  CHECK(frint(3.5F) == 4.0F);
  CHECK(frint(-0.5F) == 0.0F);
  CHECK(fdiv_rn(1.0F, 3.0F) == 0x1.555556p-2F);
  CHECK(fsqrt_rn(2.0F) == 0x1.6a09e6p0F);
  CHECK(fdiv_rn(0x1p-126F, 4.0F) == 0x1p-128F);  // subnormals are kept
}

TEST_CASE("vec: elements of every type, exactly, and stored to nearest even") {
  const float values[3] = {1.0F + 0x1p-8F, 1.0F + 0x1p-8F + 0x1p-20F, -0.0F};
  for (const pkv_dtype dtype : {PKV_DTYPE_F32, PKV_DTYPE_F16, PKV_DTYPE_BF16}) {
    std::byte row[3 * sizeof(float)];
    for (int j = 0; j < 3; ++j) store_element(dtype, row, j, values[j]);
    const bool is_bf16 = dtype == PKV_DTYPE_BF16;
    CHECK(load_element(dtype, row, 0) == (is_bf16 ? 1.0F : values[0]));
    const float second = load_element(dtype, row, 1);
    if (dtype == PKV_DTYPE_F32) CHECK(second == values[1]);
    if (dtype == PKV_DTYPE_F16) CHECK(second == values[0]);
    if (is_bf16) CHECK(second == 1.0F + 0x1p-7F);
    CHECK(std::signbit(load_element(dtype, row, 2)));
  }
}

TEST_CASE("vec: what is finite, what is NaN") {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  CHECK(is_finite(3e38F));
  CHECK_FALSE(is_finite(kInfinity));
  CHECK_FALSE(is_finite(-kInfinity));
  CHECK_FALSE(is_finite(quiet_nan()));
  CHECK(absolute(-0.0F) == 0.0F);
  CHECK_FALSE(std::signbit(absolute(-0.0F)));
  CHECK(is_bf16_nan(0x7fc0));
  CHECK(is_bf16_nan(0xff81));
  CHECK_FALSE(is_bf16_nan(0x7f80));
}

TEST_CASE("vec: words move as they are") {
  alignas(16) const uint32_t source[4] = {1, 2, 3, 0xffffffff};
  alignas(16) uint32_t target[4] = {};
  store_words(target, load_words<4>(source));
  for (int i = 0; i < 4; ++i) CHECK(target[i] == source[i]);
  CHECK(load_words<2>(source + 2).word[1] == 0xffffffff);
}

TEST_CASE("vec: f16 without branches, all of them") {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const float expected = format::f16_to_float(static_cast<uint16_t>(bits));
    CAPTURE(bits);
    REQUIRE(std::bit_cast<uint32_t>(f16_value(bits)) == std::bit_cast<uint32_t>(expected));
  }
}

TEST_CASE("vec: bytes by name, and their highest bits") {
  CHECK(pick_bytes(0x03020100U, 0x07060504U, 0x7610U) == 0x07060100U);
  CHECK(pick_bytes(0x80007f01U, 0xff0000feU, 0x0000FB8CU) == 0xffff0000U + 0x00ffU);
  CHECK(pick_bytes(0x80007f01U, 0xff0000feU, 0x98U) == 0x01010000U);
}

TEST_CASE("vec: products of four signed bytes") {
  CHECK(add_dot4(5, 0x80ff7f01U, 0x8002017fU) == 5 + 16384 - 2 + 127 + 127);
  CHECK(add_dot4(0, 0x80808080U, 0x7f7f7f7fU) == -4 * 128 * 127);
}

}  // namespace
}  // namespace pkv::gpu_host
