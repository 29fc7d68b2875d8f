// The signed Hadamard rotation and its inverse. docs/algorithm.md, section 2.3.
#pragma once

#include <cstdint>

#include "core/format/rotation.h"
#include "pariskv/pariskv_backend.h"

namespace pkv::cpu_ref {

struct Rotation {
  int32_t dim;
  format::RotationPlan plan;
  const float* signs_1;  // [dim] sigma_1
  const float* signs_2;  // [dim] sigma_2
};

Rotation key_rotation(const pkv_codec_params& codec);
Rotation value_rotation(const pkv_codec_params& codec);  // 1 round for a power of two (3.5)

// x [dim], in place; exact.
void rotate(const Rotation& rotation, float* x);

// The inverse, transpose / g, in place, in double.
void unrotate(const Rotation& rotation, double* y);

}  // namespace pkv::cpu_ref
