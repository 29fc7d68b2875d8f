// Value sums of the GPU kernels: one by one in ascending position, whatever the pieces.
// docs/algorithm.md, section 3.7.
#include "backends/gpu/value_sums.cuh"

#include <cstring>
#include <vector>

#include "core/format/half.h"
#include "doctest/doctest.h"
#include "tests/unit/cpu_ref/oracle.h"
#include "tests/unit/gpu/gpu_store.h"

namespace pkv::gpu_host {
namespace {

using test::geometry_of;
using test::Oracle;
using test::Tensor;

uint32_t range_of(const std::vector<float>& values) {
  ValueRange range;
  for (const float value : values) range.add(value);
  return range.packed();
}

TEST_CASE("value sums: a range is exact where no addition can round") {
  const uint32_t near_one = range_of({0.75F, -1.5F, 0.0F, 0x1p-10F});  // least 2^-10, most 2^0
  // bf16: multiples of 2^-17, 1,024 of them below 2^11.
  CHECK(is_exact(0.0, near_one, 7, 10));
  CHECK(is_exact(0x1p34 + 0x1p-17, near_one, 7, 10));
  CHECK_FALSE(is_exact(0x1p35, near_one, 7, 10));             // sums up to 2^36 + 2^11
  CHECK(is_exact(0x1p24, near_one, 17, 10));                  // the same ten bits lower
  CHECK_FALSE(is_exact(0x1p24 + 0x1p-28, near_one, 17, 10));  // too fine itself
  CHECK_FALSE(is_exact(-0.0, near_one, 7, 10));
  CHECK_FALSE(is_exact(0x1p-1060, near_one, 7, 10));
  CHECK(range_of({0.0F, -0.0F}) == ValueRange::kNothing);
  // 2^-126 - 2^-149 has the exponent of 2^-126, its last place at 2^-149.
  CHECK(is_exact(0.0, range_of({0x1.fffffcp-127F}), 23, 0));
  CHECK(is_exact(0x1p-98, range_of({0x1p-149F}), 23, 0));
  CHECK_FALSE(is_exact(0x1p-97, range_of({0x1p-149F}), 23, 0));
}

TEST_CASE("value sums: where a range is called exact, any order gives the same sum") {
  test::Random random(5);
  int exact = 0;
  for (int round = 0; round < 4000; ++round) {
    std::vector<float> values(8);
    const int spread = round % 90;
    for (float& value : values) {
      const int exponent = static_cast<int>(random.bits() % static_cast<uint32_t>(spread + 1));
      value = format::bf16_to_float(format::float_to_bf16(
          random.uniform() * std::bit_cast<float>(static_cast<uint32_t>(127 + exponent) << 23)));
    }
    const double before = static_cast<double>(random.uniform()) * 0x1p20;
    if (!is_exact(before, range_of(values), 7, 3)) continue;
    ++exact;
    double one_by_one = before;
    double piece = 0.0;
    for (const float value : values) {
      one_by_one += static_cast<double>(value);
      piece += static_cast<double>(value);
    }
    REQUIRE(one_by_one == before + piece);
  }
  CHECK(exact > 500);
}

// Sums of both backends after two calls, from `before` on.
void check_sums(int32_t dv, Tensor& values, int64_t tokens, double before) {
  const pkv_geometry geometry = geometry_of(64, dv);
  Oracle oracle(geometry, 2 * tokens, 1);
  Backend backend;
  const GpuStore gpu(backend, geometry, 1, 2 * tokens, false);
  Tensor keys = Tensor::random({1, 1, tokens, 64}, 3);
  keys.row(0, 0, tokens / 2)[1] = test::kNan;
  std::vector<double> sums[2];
  const pkv_store* stores[2] = {&oracle.store, &gpu.store};
  for (int which = 0; which < 2; ++which) {
    sums[which].assign(static_cast<size_t>(dv), before);
    for (const int64_t start : {int64_t{0}, tokens}) {
      const int32_t sequence = 0;
      int64_t good = 0;
      pkv_encode_args args = {};
      args.struct_size = sizeof args;
      args.batch = 1;
      args.codec = oracle.codec();
      args.keys = keys.view();
      args.values = values.view();
      args.sequences = &sequence;
      args.starts = &start;
      args.counts = &tokens;
      args.store = *stores[which];
      args.value_sums = sums[which].data();
      args.good_counts = &good;
      if (which == 0) {
        oracle.run(oracle.table->encode, args);
      } else {
        backend.run(table()->encode, args);
      }
      CHECK(good == tokens - 1);
    }
  }
  CHECK(std::memcmp(sums[0].data(), sums[1].data(), 8 * sums[0].size()) == 0);
}

TEST_CASE("value sums: the bits of cpu_ref, for values of like size and of any") {
  for (const int32_t dv : {8, 24, 64, 72}) {
    for (const int64_t tokens : {1, 31, 150}) {
      CAPTURE(dv);
      CAPTURE(tokens);
      Tensor plain = Tensor::random({1, 1, tokens, dv}, 7);
      check_sums(dv, plain, tokens, 0.0);
      Tensor wild = Tensor::random({1, 1, tokens, dv}, 8);
      test::Random random(9);
      for (float& x : wild.data()) {
        const uint32_t kind = random.bits() % 5;
        if (kind == 0) x *= 0x1p40F;
        if (kind == 1) x *= 0x1p-40F;
        if (kind == 2) x = 0.0F;
      }
      check_sums(dv, wild, tokens, 0.0);
      check_sums(dv, wild, tokens, -0x1.23456789abcdep30);
      Tensor zeros({1, 1, tokens, dv});
      for (float& x : zeros.data()) x = -0.0F;
      check_sums(dv, zeros, tokens, -0.0);
    }
  }
}

}  // namespace
}  // namespace pkv::gpu_host
