// docs/algorithm.md, section 2.3.
#include "backends/cpu_ref/rotate.h"

namespace pkv::cpu_ref {
namespace {

// FWHT of `size` elements, a power of two, in place, unscaled.
template <class Real>
void fwht(Real* x, int32_t size) {
  for (int32_t H = 1; H < size; H *= 2) {
    for (int32_t i = 0; i < size; ++i) {
      if ((i & H) != 0) continue;
      const Real a = x[i];
      const Real b = x[i + H];
      x[i] = a + b;
      x[i + H] = a - b;
    }
  }
}

// x[j] = y[j] * x[j]
template <class Real>
void multiply(Real* x, const float* y, int32_t count) {
  for (int32_t j = 0; j < count; ++j) x[j] = static_cast<Real>(y[j]) * x[j];
}

template <class Real>
void scale_by(Real* x, Real factor, int32_t count) {
  for (int32_t j = 0; j < count; ++j) x[j] = x[j] * factor;
}

}  // namespace

Rotation key_rotation(const pkv_codec_params& codec) {
  const int32_t d = codec.geometry->head_dim;
  return {d, format::rotation_plan(d, codec.geometry->rounds), codec.signs_1, codec.signs_2};
}

Rotation value_rotation(const pkv_codec_params& codec) {
  const int32_t dv = codec.geometry->value_dim;
  return {dv, format::rotation_plan(dv, 1), codec.value_signs_1, codec.value_signs_2};
}

void rotate(const Rotation& rotation, float* x) {
  const int32_t D = rotation.dim;
  const int32_t size = 1 << rotation.plan.log2_size;
  const float scale = rotation.plan.block_scale;
  multiply(x, rotation.signs_1, D);
  if (rotation.plan.is_power_of_two) {
    fwht(x, size);
    if (rotation.plan.rounds == 1) return;
    multiply(x, rotation.signs_2, D);
    fwht(x, size);
    scale_by(x, scale, D);  // 2^-p
    return;
  }
  // Two overlapping blocks of 2^p elements: the first, then the last.
  fwht(x, size);
  scale_by(x, scale, size);  // c
  multiply(x, rotation.signs_2, D);
  fwht(x + (D - size), size);
  scale_by(x + (D - size), scale, size);
}

void unrotate(const Rotation& rotation, double* y) {
  const int32_t D = rotation.dim;
  const int32_t size = 1 << rotation.plan.log2_size;
  const auto scale = static_cast<double>(rotation.plan.block_scale);
  if (rotation.plan.is_power_of_two) {
    if (rotation.plan.rounds == 2) {
      scale_by(y, scale, D);
      fwht(y, size);
      multiply(y, rotation.signs_2, D);
    }
    fwht(y, size);
    multiply(y, rotation.signs_1, D);
    scale_by(y, 1.0 / static_cast<double>(rotation.plan.gain), D);
    return;
  }
  fwht(y + (D - size), size);
  scale_by(y + (D - size), scale, size);
  multiply(y, rotation.signs_2, D);
  fwht(y, size);
  scale_by(y, scale, size);
  multiply(y, rotation.signs_1, D);
}

}  // namespace pkv::cpu_ref
