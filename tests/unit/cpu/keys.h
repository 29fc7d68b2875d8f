// Vectors that encode must get right, of every kind that docs/numerics.md names.
#pragma once

#include <algorithm>
#include <vector>

#include "tests/unit/cpu_ref/oracle.h"

namespace pkv::test {

enum class Kind {
  kBell,
  kFewValues,
  kZero,
  kCenter,     // what is subtracted, so 0
  kVanishing,  // every square is 0 in fp32
  kTiny,       // some are, the others subnormal
  kHuge,       // close to where the squares are infinite, and beyond
  kMixed,
  kSpike,
  kPair,  // without centre and balance: half of what it is rotated to is exactly 0
  kNanAmong,
  kInfAmong
};
inline constexpr uint32_t kKinds = 12;

// `center` [dim]: what encode subtracts.
inline void fill_vector(Kind kind, Random& random, const float* center, int64_t dim, float* x) {
  const auto any = [&random](int64_t below) {
    return static_cast<int64_t>(random.bits() % static_cast<uint32_t>(below));
  };
  for (int64_t j = 0; j < dim; ++j) {
    switch (kind) {
      case Kind::kBell: x[j] = random.bell(); break;
      case Kind::kFewValues: x[j] = static_cast<float>(any(3)) - 1.0F; break;
      case Kind::kZero: x[j] = any(2) == 0 ? 0.0F : -0.0F; break;
      case Kind::kCenter: x[j] = center[j]; break;
      case Kind::kVanishing: x[j] = center[j] == 0.0F ? random.bell() * 0x1p-95F : center[j]; break;
      case Kind::kTiny: x[j] = random.bell() * (any(2) == 0 ? 0x1p-146F : 0x1p-70F); break;
      case Kind::kHuge: x[j] = random.bell() * (any(4) == 0 ? 0x1p62F : 0x1p55F); break;
      case Kind::kMixed: x[j] = random.bell() * (any(8) == 0 ? 0x1p40F : 0x1p-40F); break;
      case Kind::kSpike:
      case Kind::kPair: x[j] = 0.0F; break;
      default: x[j] = random.uniform(); break;
    }
  }
  const int64_t at = any(dim);
  if (kind == Kind::kSpike) x[at] = random.bell();
  if (kind == Kind::kPair && (at ^ 8) < dim) x[at] = x[at ^ 8] = random.bell();
  if (kind == Kind::kNanAmong) x[at] = kNan;
  if (kind == Kind::kInfAmong) x[at] = -kInf;
}

// Mostly bells, with some of every kind among them.
inline Kind any_kind(Random& random) {
  const uint32_t draw = random.bits() % 20;
  return draw < kKinds ? static_cast<Kind>(draw) : Kind::kBell;
}

}  // namespace pkv::test
