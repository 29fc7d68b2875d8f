// Codes of a record's chunk of 32 dims as signed levels. docs/algorithm.md, section 3.4.
// scalar4 and scalar5: as bytes y of levels 2 y + 1, in words whose order estimate.cuh explains.
#pragma once

#include "backends/gpu/gpu_vec.cuh"
#include "core/format/levels.h"

namespace PKV_GPU_NS {

// (v - 1) / 2 of four levels, as bytes.
constexpr uint32_t level_bytes(const int32_t* v) {
  uint32_t bytes = 0;
  for (int i = 0; i < 4; ++i) bytes |= static_cast<uint32_t>((v[i] - 1) / 2) << (8 * i);
  return bytes;
}

constexpr uint32_t shifted(uint32_t word, int left) {
  return left >= 0 ? word << left : word >> -left;
}
// 0xff or 0 for bits t, t + 4, t + 8, t + 12 of a word, and from bit 16 + t on.
PKV_DEVICE void spread_bits(uint32_t word, int t, uint32_t* low, uint32_t* high) {
  const uint32_t even = word << (7 - t);
  const uint32_t odd = word << (3 - t);
  *low = pick_bytes(even, odd, 0xD9C8U);
  *high = pick_bytes(even, odd, 0xFBEAU);
}

// y of the 32 dims of a chunk: its plane words m (of scalar4 three), its sign word.
template <int32_t kCodec>
PKV_DEVICE void decode_scalar(const uint32_t* m, uint32_t signs, uint32_t* y) {
  constexpr bool kIs4 = kCodec == PKV_CODEC_SCALAR4;
  constexpr uint32_t kLevels[4] = {
      level_bytes(kIs4 ? format::kScalar4Levels : format::kScalar5Levels),
      level_bytes((kIs4 ? format::kScalar4Levels : format::kScalar5Levels) + 4),
      kIs4 ? 0 : level_bytes(format::kScalar5Levels + 8),
      kIs4 ? 0 : level_bytes(format::kScalar5Levels + 12)};
#pragma unroll
  for (int t = 0; t < 4; ++t) {
    const uint32_t codes = (shifted(m[0], -t) & 0x11111111U) |
                           (shifted(m[1], 1 - t) & 0x22222222U) |
                           (shifted(m[2], 2 - t) & 0x44444444U);
    uint32_t negative[2];
    spread_bits(~signs, t, &negative[0], &negative[1]);
    uint32_t upper[2] = {};
    if constexpr (!kIs4) spread_bits(m[3], t, &upper[0], &upper[1]);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint32_t x = pick_bytes(kLevels[0], kLevels[1], codes >> (16 * half));
      if constexpr (!kIs4) {
        const uint32_t x_upper = pick_bytes(kLevels[2], kLevels[3], codes >> (16 * half));
        x = (x & ~upper[half]) | (x_upper & upper[half]);
      }
      y[2 * t + half] = x ^ negative[half];  // -(2 x + 1) = 2 ~x + 1
    }
  }
}

// The signed levels of the 32 dims of a chunk, polar4.
PKV_DEVICE void decode_polar(const uint32_t* m, uint32_t signs, float* level) {
  constexpr float kLevels[8] = {format::kPolarLevels[0], format::kPolarLevels[1],
                                format::kPolarLevels[2], format::kPolarLevels[3],
                                format::kPolarLevels[4], format::kPolarLevels[5],
                                format::kPolarLevels[6], format::kPolarLevels[7]};
#pragma unroll
  for (int j = 0; j < 32; ++j) {
    const bool bits[3] = {((m[0] >> j) & 1U) != 0, ((m[1] >> j) & 1U) != 0,
                          ((m[2] >> j) & 1U) != 0};
    const float low =
        bits[1] ? (bits[0] ? kLevels[3] : kLevels[2]) : (bits[0] ? kLevels[1] : kLevels[0]);
    const float high =
        bits[1] ? (bits[0] ? kLevels[7] : kLevels[6]) : (bits[0] ? kLevels[5] : kLevels[4]);
    const float a = bits[2] ? high : low;
    level[j] = ((signs >> j) & 1U) != 0 ? a : -a;
  }
}

}  // namespace PKV_GPU_NS
