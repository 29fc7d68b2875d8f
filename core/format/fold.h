// fold: the one sum of every exact rule. docs/algorithm.md, section 0.
// For 8 numbers ((x0+x4)+(x2+x6)) + ((x1+x5)+(x3+x7)); compile with contraction off.
#pragma once

#include "core/format/config.h"

namespace pkv::format {

// The padded size: the smallest power of two >= count, and 1 for no numbers at all.
PKV_HD constexpr int fold_size(int count) {
  int size = 1;
  while (size < count) size *= 2;
  return size;
}

// Folds x[0 .. size), size a power of two, in place; the sum is also left in x[0].
PKV_HD constexpr float fold_in_place(float* x, int size) {
  for (int half = size / 2; half >= 1; half /= 2) {
    for (int i = 0; i < half; ++i) x[i] = x[i] + x[i + half];
  }
  return x[0];
}

// Sum of f(0), .., f(count - 1), each evaluated once, in `scratch` of fold_size(count) floats.
template <class Function>
PKV_HD constexpr float fold_each(int count, float* scratch, Function f) {
  const int size = fold_size(count);
  for (int i = 0; i < count; ++i) scratch[i] = f(i);
  for (int i = count; i < size; ++i) scratch[i] = 0.0F;
  return fold_in_place(scratch, size);
}

// Sum of x[0 .. count); x stays as it is.
PKV_HD constexpr float fold(const float* x, int count, float* scratch) {
  return fold_each(count, scratch, [x](int i) { return x[i]; });
}

// The same with a scratch array of its own. kCapacity: fold_size of the largest count.
template <int kCapacity = 1024>
PKV_HD constexpr float fold(const float* x, int count) {
  float scratch[kCapacity] = {};
  return fold(x, count, scratch);
}

template <int kCapacity = 1024, class Function>
PKV_HD constexpr float fold_each(int count, Function f) {
  float scratch[kCapacity] = {};
  return fold_each(count, scratch, f);
}

}  // namespace pkv::format
