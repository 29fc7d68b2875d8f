// Selection against a sort, on lists that its search for a bound finds hard.
#include "backends/cpu/select.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "tests/unit/cpu/twin.h"

namespace {

using pkv::cpu::Isa;
using pkv::cpu::Scratch;
using pkv::cpu::Survivors;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Positions of the `wanted` best, ascending: the larger value, then the smaller position.
std::vector<int32_t> best_of(const std::vector<float>& values, int64_t wanted) {
  std::vector<int32_t> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return values[a] > values[b]; });
  order.resize(static_cast<size_t>(wanted));
  std::sort(order.begin(), order.end());
  return order;
}

std::vector<int32_t> selected(const Isa& isa, const std::vector<float>& values, int64_t wanted) {
  const auto count = static_cast<int64_t>(values.size());
  Scratch size(nullptr);
  pkv::cpu::take_survivors(size, isa, count, count);
  std::vector<std::byte> memory(static_cast<size_t>(size.bytes() + 64));
  const size_t skip = (64 - reinterpret_cast<uintptr_t>(memory.data()) % 64) % 64;
  Scratch scratch(memory.data() + skip);
  Survivors survivors = pkv::cpu::take_survivors(scratch, isa, count, count);
  pkv::cpu::reset(survivors, wanted, -kInfinity);
  pkv::cpu::add_votes(values.data(), count, 0, survivors);
  pkv::cpu::keep_best(survivors);
  return {survivors.positions, survivors.positions + survivors.count};
}

// One kind of list: the i-th value from random bits.
float value_of(int kind, uint32_t bits) {
  constexpr float kFew[] = {-kInfinity, -1.0F, -0.0F, 0.0F, 1e-45F, 1.0F, 3e38F, kInfinity};
  switch (kind) {
    case 0: return kFew[bits % 8];
    case 1: return static_cast<float>(bits % 5);
    case 2: return bits % 97 == 0 ? 3e38F : static_cast<float>(bits) * 1e-30F;
    case 3: return 1.0F + static_cast<float>(bits % 3) * 0x1p-23F;
    case 4: return (bits % 2 == 0 ? 1e-42F : -1e-42F) * static_cast<float>(bits % 7);
    default: return static_cast<float>(static_cast<int32_t>(bits)) * 0x1p-31F;
  }
}

}  // namespace

TEST_CASE("selection keeps what a sort would, equal values by position") {
  std::mt19937 random(20261130);
  for (const std::string& name : pkv::test::host_sets()) {
    CAPTURE(name);
    Isa isa;
    REQUIRE(isa.set(name));
    for (int round = 0; round < 120; ++round) {
      const int kind = round % 6;
      std::vector<float> values(1 + random() % (round % 4 == 0 ? 5000 : 300));
      for (float& value : values) value = value_of(kind, static_cast<uint32_t>(random()));
      const auto wanted = static_cast<int64_t>(random() % (values.size() + 1));
      CAPTURE(kind);
      CAPTURE(values.size());
      CAPTURE(wanted);
      CHECK(selected(isa, values, wanted) == best_of(values, wanted));
    }
  }
}

TEST_CASE("a bound of a rank is reached by at least as many values, NaN left out") {
  std::mt19937 random(7);
  const Isa isa;
  for (int round = 0; round < 60; ++round) {
    std::vector<float> values(1 + random() % 2000);
    int64_t numbers = 0;
    for (float& value : values) {
      value = value_of(round % 6, static_cast<uint32_t>(random()));
      if (random() % 9 == 0) value = std::numeric_limits<float>::quiet_NaN();
      numbers += value == value ? 1 : 0;
    }
    const auto rank = static_cast<int64_t>(1 + random() % values.size());
    const auto count = static_cast<int64_t>(values.size());
    const float bound = pkv::cpu::bound_of_rank(isa, values.data(), count, rank);
    const auto reached =
        std::count_if(values.begin(), values.end(), [&](float value) { return value >= bound; });
    CHECK(reached >= std::min(rank, numbers));
    if (rank > numbers) CHECK(bound == -kInfinity);
  }
}
