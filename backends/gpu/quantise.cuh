// Magnitude codes and their tables. docs/algorithm.md, section 3.4. Exact.
// Here bit p of a code stands at place 2 p, so that codes of neighbours pack bit beside bit.
// A table gives thresholds and levels by a constant index: a kernel holds them as constants.
#pragma once

#include <utility>

#include "backends/gpu/gpu_vec.cuh"
#include "core/format/levels.h"

namespace PKV_GPU_NS {

struct PolarTable {
  static constexpr int kPlanes = 3;
  template <int i>
  static constexpr float kThreshold = format::kPolarThresholds[i];
  template <int i>
  static constexpr float kLevel = format::kPolarLevels[i];
};

struct Normal4Table {
  static constexpr int kPlanes = 3;
  template <int i>
  static constexpr float kThreshold = format::kNormal4Thresholds[i];
  template <int i>
  static constexpr float kLevel = static_cast<float>(format::kScalar4Levels[i]);
};

struct Normal5Table {
  static constexpr int kPlanes = 4;
  template <int i>
  static constexpr float kThreshold = format::kNormal5Thresholds[i];
  template <int i>
  static constexpr float kLevel = static_cast<float>(format::kScalar5Levels[i]);
};

struct Normal2Table {
  static constexpr int kPlanes = 1;
  template <int i>
  static constexpr float kThreshold = format::kNormal2Threshold;
  template <int i>
  static constexpr float kLevel = format::kNormal2Levels[i];
};

// The thresholds times a unit, ascending since rounding keeps the order: counting those below a
// magnitude is a search.
template <class Table>
class Quantiser {
 public:
  static constexpr int kCuts = (1 << Table::kPlanes) - 1;

  PKV_DEVICE explicit Quantiser(float unit) : Quantiser(unit, std::make_index_sequence<kCuts>()) {}

  PKV_DEVICE uint32_t code(float magnitude) const { return search<kCuts>(cut_, magnitude); }

 private:
  template <size_t... i>
  PKV_DEVICE Quantiser(float unit, std::index_sequence<i...> /*cuts*/)
      : cut_{fmul_rn(Table::template kThreshold<static_cast<int>(i)>, unit)...} {}

  template <int kCount>
  PKV_DEVICE static uint32_t search(const float* cuts, float magnitude) {
    if constexpr (kCount == 0) {
      return 0;
    } else {
      constexpr int kHalf = kCount / 2;
      const bool is_above = cuts[kHalf] < magnitude;
      float left[kHalf + 1];
#pragma unroll
      for (int i = 0; i < kHalf; ++i) left[i] = is_above ? cuts[kHalf + 1 + i] : cuts[i];
      constexpr uint32_t kBit = kHalf + 1;
      return search<kHalf>(left, magnitude) | (is_above ? kBit * kBit : 0U);
    }
  }

  float cut_[kCuts];
};

// The code that stands for number i of a table.
constexpr uint32_t spread_code(uint32_t i) {
  return (i & 1U) | (i & 2U) << 1 | (i & 4U) << 2 | (i & 8U) << 3;
}
PKV_DEVICE uint32_t code_bit(uint32_t code, int p) { return (code >> (2 * p)) & 1U; }

// All levels of a table: put(i, level).
template <class Table, class Put, size_t... i>
PKV_DEVICE void each_level(const Put& put, std::index_sequence<i...> /*levels*/) {
  (put(static_cast<int>(i), Table::template kLevel<static_cast<int>(i)>), ...);
}
template <class Table, class Put>
PKV_DEVICE void each_level(const Put& put) {
  each_level<Table>(put, std::make_index_sequence<size_t{1} << Table::kPlanes>());
}

// The level of a code, chosen among constants.
template <class Table>
PKV_DEVICE float level_of(uint32_t code) {
  float level[1 << Table::kPlanes];
  each_level<Table>([&](int i, float value) { level[i] = value; });
#pragma unroll
  for (int p = Table::kPlanes - 1; p >= 0; --p) {
    const bool is_upper = code_bit(code, p) != 0;
#pragma unroll
    for (int i = 0; i < (1 << p); ++i) level[i] = is_upper ? level[i + (1 << p)] : level[i];
  }
  return level[0];
}

// The unit that gives every magnitude code 0 (3.1).
PKV_DEVICE float unit_of_nothing() { return std::bit_cast<float>(0x7f800000U); }

// 3.4, scalar codecs; inv_sqrt = fp32(1/sqrt(dim)).
PKV_DEVICE float scalar_unit(float n2, float inv_sqrt) {
  return n2 == 0.0F ? unit_of_nothing() : fmul_rn(fsqrt_rn(n2), inv_sqrt);
}

// bf16(a / b), 0 for a zero key (3.1).
PKV_DEVICE uint16_t factor_of(float a, float b, bool is_zero) {
  return is_zero ? uint16_t{0} : format::float_to_bf16(fdiv_rn(a, b));
}

}  // namespace PKV_GPU_NS
