// fold and rotation by lanes give the bits of core/format and of the reference.
#include "backends/gpu/fold.cuh"

#include <bit>
#include <cmath>
#include <vector>

#include "backends/cpu_ref/rotate.h"
#include "backends/gpu/rotate.cuh"
#include "core/format/fold.h"
#include "doctest/doctest.h"
#include "tests/unit/gpu/run_kernel.h"

namespace pkv::gpu_host {
namespace {

// Numbers of many magnitudes, so that every order of additions rounds otherwise.
std::vector<float> numbers(int count, uint32_t seed) {
  std::vector<float> values;
  for (int i = 0; i < count; ++i) {
    seed = seed * 1664525U + 1013904223U;
    const auto mantissa = static_cast<float>(static_cast<int32_t>(seed) >> 8);
    values.push_back(std::ldexp(mantissa, static_cast<int>(seed % 13) - 30));
  }
  return values;
}

TEST_CASE("fold: the bits of core/format, for every number of terms") {
  for (const auto& machine : {gpu_exec::Options{32, 0}, gpu_exec::Options{64, 3}}) {
    for (const int count :
         {0, 1, 7, 8, 9, 16, 24, 31, 32, 33, 64, 72, 96, 128, 200, 256, 264, 512, 576, 1024}) {
      const std::vector<float> x = numbers(count, 17);
      const float expected = format::fold(x.data(), count);
      std::vector<float> sums(64);
      CHECK(run_kernel(machine, {}, [&] {
              sums[static_cast<size_t>(thread_index())] =
                  fold_group(count, [&](int j) { return x[static_cast<size_t>(j)]; });
            }) == "");
      CAPTURE(count);
      for (const float sum : sums) {
        CHECK(std::bit_cast<uint32_t>(sum) == std::bit_cast<uint32_t>(expected));
      }
    }
  }
}

TEST_CASE("fold: the sign of zero is that of the padded sum") {
  for (const int count : {8, 24}) {
    const std::vector<float> x(static_cast<size_t>(count), -0.0F);
    float sum = 1.0F;
    CHECK(run_kernel({}, {}, [&] {
            const float mine = fold_group(count, [&](int j) { return x[static_cast<size_t>(j)]; });
            if (thread_index() == 0) sum = mine;
          }) == "");
    CHECK(std::bit_cast<uint32_t>(sum) == std::bit_cast<uint32_t>(format::fold(x.data(), count)));
  }
}

TEST_CASE("rotate: the bits of the reference, for every width") {
  for (int dim = 8; dim <= 576; dim += 8) {
    for (const int rounds : {1, 2}) {
      const format::RotationPlan plan = format::rotation_plan(dim, rounds);
      if (rounds == 2 && !plan.is_power_of_two) continue;
      const std::vector<float> x = numbers(dim, static_cast<uint32_t>(dim));
      std::vector<float> signs_1;
      std::vector<float> signs_2;
      for (int j = 0; j < dim; ++j) {
        signs_1.push_back(j % 3 == 0 ? -1.0F : 1.0F);
        signs_2.push_back(j % 5 < 2 ? -1.0F : 1.0F);
      }
      std::vector<float> expected = x;
      cpu_ref::rotate({dim, plan, signs_1.data(), signs_2.data()}, expected.data());
      const gpu_exec::Options machine = {dim % 16 == 0 ? 32 : 64, static_cast<uint64_t>(rounds)};
      std::vector<float> found(2 * static_cast<size_t>(dim));
      CHECK(run_kernel(machine, {.dynamic_bytes = 2 * dim * int64_t{sizeof(float)}}, [&] {
              PKV_DYNAMIC_SHARED(memory);
              const int group = LaneGroup<32>::index();
              const GroupVector v = {reinterpret_cast<float*>(memory) + group * dim, dim};
              v.each([&](int j, float) { return x[static_cast<size_t>(j)]; });
              rotate(v, plan, signs_1.data(), signs_2.data());
              v.each(
                  [&](int j, float y) { return found[static_cast<size_t>(group * dim + j)] = y; });
            }) == "");
      CAPTURE(dim);
      CAPTURE(rounds);
      for (size_t j = 0; j < found.size(); ++j) {
        REQUIRE(std::bit_cast<uint32_t>(found[j]) ==
                std::bit_cast<uint32_t>(expected[j % static_cast<size_t>(dim)]));
      }
    }
  }
}

}  // namespace
}  // namespace pkv::gpu_host
