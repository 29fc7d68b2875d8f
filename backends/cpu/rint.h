// rint without a call, for numbers that are not large.
#pragma once

namespace pkv::cpu {

// |x| < 2^22: the addition rounds to a whole number, ties to even.
inline float rint_small(float x) {
  constexpr float kShift = 0x1.8p23F;
  return (x + kShift) - kShift;
}

}  // namespace pkv::cpu
