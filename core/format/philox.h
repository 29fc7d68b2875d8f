// Philox4x32-10 and the sign vectors drawn from it. docs/algorithm.md, section 2.1.
// Counter based: an element is a function of (seed, stream, index), so any order gives the same
// signs. Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC'11.
#pragma once

#include <array>
#include <cstdint>

#include "core/format/config.h"

namespace pkv::format {

inline constexpr uint32_t kStreamKey1 = 1;    // sigma_1 of keys
inline constexpr uint32_t kStreamKey2 = 2;    // sigma_2 of keys
inline constexpr uint32_t kStreamValue1 = 3;  // sigma_1 of values
inline constexpr uint32_t kStreamValue2 = 4;  // sigma_2 of values

PKV_HD constexpr std::array<uint32_t, 4> philox4x32_10(std::array<uint32_t, 4> counter,
                                                       std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    if (round > 0) {
      key[0] += 0x9E3779B9U;
      key[1] += 0xBB67AE85U;
    }
    const uint64_t product0 = uint64_t{0xD2511F53U} * counter[0];
    const uint64_t product1 = uint64_t{0xCD9E8D57U} * counter[2];
    const auto hi0 = static_cast<uint32_t>(product0 >> 32);
    const auto lo0 = static_cast<uint32_t>(product0);
    const auto hi1 = static_cast<uint32_t>(product1 >> 32);
    const auto lo1 = static_cast<uint32_t>(product1);
    counter = {hi1 ^ counter[1] ^ key[0], lo1, hi0 ^ counter[3] ^ key[1], lo0};
  }
  return counter;
}

// Element j >= 0 of sign vector `stream` of `seed`: +1 or -1.
PKV_HD constexpr float sign_element(uint64_t seed, uint32_t stream, int64_t j) {
  const std::array<uint32_t, 2> key = {static_cast<uint32_t>(seed),
                                       static_cast<uint32_t>(seed >> 32)};
  const auto words = philox4x32_10({static_cast<uint32_t>(j / 128), stream, 0, 0}, key);
  const uint32_t word = words[static_cast<std::size_t>((j / 32) % 4)];
  return ((word >> (j % 32)) & 1U) != 0 ? -1.0F : 1.0F;
}

}  // namespace pkv::format
