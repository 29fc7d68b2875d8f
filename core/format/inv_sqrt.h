// fp32(1/sqrt(d)), correctly rounded, in integers: no library function decides a bit.
// docs/algorithm.md, sections 0 (default scale) and 3.4.
#pragma once

#include <bit>
#include <cstdint>

#include "core/format/config.h"

namespace pkv::format {

// floor(sqrt(value)), bit by bit.
PKV_HD constexpr uint64_t floor_sqrt(uint64_t value) {
  uint64_t root = 0;
  for (int bit = 31; bit >= 0; --bit) {
    const uint64_t trial = root | (uint64_t{1} << bit);
    if (trial * trial <= value) root = trial;
  }
  return root;
}

// 1 <= dim <= 1024.
PKV_HD constexpr float inv_sqrt(int dim) {
  // root = floor(2^e / sqrt(dim)) with 25 significant bits: the 24 of the result and one that says
  // on which side of the middle the real number lies. It is never on the middle: only a square dim
  // has a rational root, a power of two then has zeros there, and no other 1/m ends in binary at
  // all.
  int exponent = 24;
  uint64_t root = 0;
  while (root < (uint64_t{1} << 24)) {
    root = floor_sqrt((uint64_t{1} << (2 * exponent)) / static_cast<uint64_t>(dim));
    if (root < (uint64_t{1} << 24)) ++exponent;
  }
  const auto mantissa = static_cast<uint32_t>((root + 1) / 2);  // times 2^(1 - exponent)
  // 2^(1 - exponent) as a float, times a whole number of at most 24 bits: one exact product.
  return static_cast<float>(mantissa) *
         std::bit_cast<float>(static_cast<uint32_t>(128 - exponent) << 23);
}

}  // namespace pkv::format
