// Thresholds, levels and lookup cells of the magnitude codes. docs/algorithm.md, sections 3.4, 3.5.
// A cell is a magnitude in units of u / scale, rounded to a whole number below 16. No cell holds
// more than one threshold, so a code is the number of thresholds in lower cells, and one more if
// the cell's own is below the magnitude: one lookup and one exact comparison instead of seven.
#pragma once

#include <cstdint>
#include <limits>

#include "core/format/levels.h"
#include "pariskv/pariskv_types.h"

namespace pkv::cpu {

inline constexpr int kCells = 16;

struct Quantiser {
  int count;                     // thresholds
  float thresholds[15];          // [count] ascending
  float levels[16];              // [count + 1]
  float cells_per_unit;          // 0: too fine for cells
  float cell_threshold[kCells];  // the cell's own, infinite without one
  uint32_t cell_base[kCells];    // thresholds in lower cells
};

template <class Level>
constexpr Quantiser make_quantiser(int count, const float* thresholds, const Level* levels,
                                   int cells_per_unit) {
  Quantiser result{};
  result.count = count;
  result.cells_per_unit = static_cast<float>(cells_per_unit);
  for (int i = 0; i < count; ++i) result.thresholds[i] = thresholds[i];
  for (int i = 0; i <= count; ++i) result.levels[i] = static_cast<float>(levels[i]);
  if (cells_per_unit == 0) return result;
  uint32_t below = 0;
  for (int cell = 0; cell < kCells; ++cell) {
    result.cell_base[cell] = below;
    result.cell_threshold[cell] = std::numeric_limits<float>::infinity();
    const float end = (static_cast<float>(cell) + 0.5F) / result.cells_per_unit;
    if (below < static_cast<uint32_t>(count) && thresholds[below] < end)
      result.cell_threshold[cell] = thresholds[below++];
  }
  return result;
}

// Each threshold within its cell by more than a wrong rounding of the cell could be, and none left
// for a cell that is not there.
constexpr bool cells_are_safe(const Quantiser& q) {
  int found = 0;
  for (int cell = 0; cell < kCells; ++cell) {
    if (q.cell_threshold[cell] == std::numeric_limits<float>::infinity()) continue;
    ++found;
    const float off = q.cell_threshold[cell] * q.cells_per_unit - static_cast<float>(cell);
    if (off < -0.45F || off > 0.45F) return false;
  }
  return found == q.count;
}

inline constexpr Quantiser kPolar =
    make_quantiser(7, format::kPolarThresholds, format::kPolarLevels, 16);
inline constexpr Quantiser kScalar4 =
    make_quantiser(7, format::kNormal4Thresholds, format::kScalar4Levels, 4);
inline constexpr Quantiser kScalar5 =
    make_quantiser(15, format::kNormal5Thresholds, format::kScalar5Levels, 0);
inline constexpr Quantiser kSketch2 =
    make_quantiser(1, &format::kNormal2Threshold, format::kNormal2Levels, 1);
static_assert(cells_are_safe(kPolar) && cells_are_safe(kScalar4) && cells_are_safe(kSketch2));

}  // namespace pkv::cpu
