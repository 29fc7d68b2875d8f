// Thresholds and levels of the magnitude codes. docs/algorithm.md, sections 3.4 and 3.5.
#pragma once

#include <cstdint>

#include "core/format/levels.h"
#include "core/format/records.h"

namespace pkv::cpu_ref {

struct Quantiser {
  int32_t planes;           // bits of a code
  const float* thresholds;  // [2^planes - 1] ascending
  float levels[16];         // [2^planes] table P, or fp32(v) of N4 and N5, or table N2

  // #{ i : T_i * u < magnitude }
  int32_t code(float u, float magnitude) const {
    int32_t count = 0;
    for (int32_t i = 0; i < (1 << planes) - 1; ++i) {
      count += thresholds[i] * u < magnitude ? 1 : 0;
    }
    return count;
  }
};

template <class Level>
Quantiser quantiser(int32_t planes, const float* thresholds, const Level* levels) {
  Quantiser result = {planes, thresholds, {}};
  for (int32_t i = 0; i < (1 << planes); ++i) result.levels[i] = static_cast<float>(levels[i]);
  return result;
}

inline const int32_t* scalar_levels(int32_t codec) {
  return codec == PKV_CODEC_SCALAR5 ? format::kScalar5Levels : format::kScalar4Levels;
}

inline Quantiser key_quantiser(int32_t codec) {
  const int32_t planes = format::code_planes(codec);
  switch (codec) {
    case PKV_CODEC_POLAR4: return quantiser(planes, format::kPolarThresholds, format::kPolarLevels);
    case PKV_CODEC_SCALAR5:
      return quantiser(planes, format::kNormal5Thresholds, scalar_levels(codec));
    default: return quantiser(planes, format::kNormal4Thresholds, scalar_levels(codec));
  }
}

inline Quantiser value_quantiser(int32_t sketch_bits) {
  return sketch_bits == 2 ? quantiser(1, &format::kNormal2Threshold, format::kNormal2Levels)
                          : quantiser(3, format::kNormal4Thresholds, format::kScalar4Levels);
}

}  // namespace pkv::cpu_ref
