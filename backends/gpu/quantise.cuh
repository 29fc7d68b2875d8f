// Magnitude codes and their tables. docs/algorithm.md, section 3.4. Exact.
// A table gives thresholds and levels by a constant index, so that a kernel holds them as constants.
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

// A code and the level it stands for.
struct Magnitude {
  uint32_t code;
  float level;
};

// The thresholds times a unit, ascending since rounding keeps the order: counting those below a
// magnitude is a search.
template <class Table>
struct Quantiser {
  static constexpr int kCuts = (1 << Table::kPlanes) - 1;
  float cut[kCuts];

  PKV_DEVICE explicit Quantiser(float unit) : Quantiser(unit, std::make_index_sequence<kCuts>()) {}

  PKV_DEVICE Magnitude operator()(float magnitude) const {
    Magnitude found = {0, 0.0F};
    float levels[kCuts + 1];
    fill_levels(levels, std::make_index_sequence<kCuts + 1>());
    search<kCuts>(cut, levels, magnitude, found);
    return found;
  }

 private:
  template <size_t... i>
  PKV_DEVICE Quantiser(float unit, std::index_sequence<i...> /*cuts*/)
      : cut{fmul_rn(Table::template kThreshold<static_cast<int>(i)>, unit)...} {}

  template <size_t... i>
  PKV_DEVICE static void fill_levels(float* levels, std::index_sequence<i...> /*levels*/) {
    ((levels[i] = Table::template kLevel<static_cast<int>(i)>), ...);
  }

  // cuts[0 .. kCount) and the levels around them are left.
  template <int kCount>
  PKV_DEVICE static void search(const float* cuts, const float* levels, float magnitude,
                                Magnitude& found) {
    if constexpr (kCount == 0) {
      found.level = levels[0];
    } else {
      constexpr int kHalf = kCount / 2;
      const bool is_above = cuts[kHalf] < magnitude;
      float upper_cuts[kHalf + 1];
      float upper_levels[kHalf + 1];
#pragma unroll
      for (int i = 0; i < kHalf; ++i) upper_cuts[i] = is_above ? cuts[kHalf + 1 + i] : cuts[i];
#pragma unroll
      for (int i = 0; i <= kHalf; ++i) {
        upper_levels[i] = is_above ? levels[kHalf + 1 + i] : levels[i];
      }
      found.code |= is_above ? uint32_t{kHalf + 1} : 0U;
      search<kHalf>(upper_cuts, upper_levels, magnitude, found);
    }
  }
};

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
