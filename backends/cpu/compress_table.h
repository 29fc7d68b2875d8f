// Which lanes a mask of 8 keeps, packed to the front: kKept[mask][i] is the i-th lane kept.
#pragma once

#include <array>
#include <cstdint>

namespace pkv::cpu {

inline constexpr std::array<std::array<uint8_t, 8>, 256> kKept = [] {
  std::array<std::array<uint8_t, 8>, 256> table{};
  for (unsigned mask = 0; mask < 256; ++mask) {
    unsigned kept = 0;
    for (unsigned lane = 0; lane < 8; ++lane) {
      if (((mask >> lane) & 1) != 0) table[mask][kept++] = static_cast<uint8_t>(lane);
    }
  }
  return table;
}();

}  // namespace pkv::cpu
