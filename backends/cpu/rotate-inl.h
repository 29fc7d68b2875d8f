// The signed Hadamard rotation of columns. docs/algorithm.md, section 2.3.
// Exact: the stages of the FWHT are those of the text, each with its own addition; three stages at
// a time stay in registers.
#if defined(PKV_CPU_ROTATE_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef PKV_CPU_ROTATE_INL_H
#undef PKV_CPU_ROTATE_INL_H
#else
#define PKV_CPU_ROTATE_INL_H
#endif

#include "backends/cpu/columns-inl.h"
#include "core/format/rotation.h"

HWY_BEFORE_NAMESPACE();
namespace pkv::cpu::HWY_NAMESPACE {
namespace {

// What brings a row into rotated space: x_j = factor_j * (k_j - center_j), then the rotation but
// for its sigma_1, which `factor` has (a change of sign rounds nothing).
struct RowRotation {
  int dim;
  format::RotationPlan plan;
  const float* center;   // [dim]
  const float* factor;   // [dim] sigma_1 * s
  const float* signs_2;  // [dim] sigma_2
};

HWY_INLINE void butterfly(Column& a, Column& b) {
  const Column sum = hn::Add(a, b);
  b = hn::Sub(a, b);
  a = sum;
}

// Three stages, the first pairs neighbours.
HWY_INLINE void butterfly8(Column& x0, Column& x1, Column& x2, Column& x3, Column& x4, Column& x5,
                           Column& x6, Column& x7) {
  butterfly(x0, x1);
  butterfly(x2, x3);
  butterfly(x4, x5);
  butterfly(x6, x7);
  butterfly(x0, x2);
  butterfly(x1, x3);
  butterfly(x4, x6);
  butterfly(x5, x7);
  butterfly(x0, x4);
  butterfly(x1, x5);
  butterfly(x2, x6);
  butterfly(x3, x7);
}

// Eight columns, `stride` floats apart.
struct Eight {
  float* first;
  int64_t stride;

  HWY_INLINE void load(Column& x0, Column& x1, Column& x2, Column& x3, Column& x4, Column& x5,
                       Column& x6, Column& x7) const {
    x0 = hn::Load(kFloats, first);
    x1 = hn::Load(kFloats, first + stride);
    x2 = hn::Load(kFloats, first + 2 * stride);
    x3 = hn::Load(kFloats, first + 3 * stride);
    x4 = hn::Load(kFloats, first + 4 * stride);
    x5 = hn::Load(kFloats, first + 5 * stride);
    x6 = hn::Load(kFloats, first + 6 * stride);
    x7 = hn::Load(kFloats, first + 7 * stride);
  }
  HWY_INLINE void store(Column x0, Column x1, Column x2, Column x3, Column x4, Column x5, Column x6,
                        Column x7) const {
    hn::Store(x0, kFloats, first);
    hn::Store(x1, kFloats, first + stride);
    hn::Store(x2, kFloats, first + 2 * stride);
    hn::Store(x3, kFloats, first + 3 * stride);
    hn::Store(x4, kFloats, first + 4 * stride);
    hn::Store(x5, kFloats, first + 5 * stride);
    hn::Store(x6, kFloats, first + 6 * stride);
    hn::Store(x7, kFloats, first + 7 * stride);
  }
};

// Stages H = 2^from .. 2^(to - 1) of an FWHT of 2^log2_size columns.
HWY_INLINE void fwht_stages(float* x, int log2_size, int from, int to) {
  const int size = 1 << log2_size;
  for (; from + 3 <= to; from += 3) {
    const int H = 1 << from;
    for (int base = 0; base < size; base += 8 * H) {
      for (int i = 0; i < H; ++i) {
        const Eight eight{x + (base + i) * kLanes, H * kLanes};
        Column x0, x1, x2, x3, x4, x5, x6, x7;
        eight.load(x0, x1, x2, x3, x4, x5, x6, x7);
        butterfly8(x0, x1, x2, x3, x4, x5, x6, x7);
        eight.store(x0, x1, x2, x3, x4, x5, x6, x7);
      }
    }
  }
  for (; from < to; ++from) {
    const int H = 1 << from;
    for (int base = 0; base < size; base += 2 * H) {
      for (int i = base; i < base + H; ++i) {
        Column a = hn::Load(kFloats, x + i * kLanes);
        Column b = hn::Load(kFloats, x + (i + H) * kLanes);
        butterfly(a, b);
        hn::Store(a, kFloats, x + i * kLanes);
        hn::Store(b, kFloats, x + (i + H) * kLanes);
      }
    }
  }
}

HWY_INLINE void scale_columns(float* x, int count, float factor) {
  for (int j = 0; j < count; ++j) {
    hn::Store(hn::Mul(hn::Load(kFloats, x + j * kLanes), hn::Set(kFloats, factor)), kFloats,
              x + j * kLanes);
  }
}

HWY_INLINE void multiply_columns(float* x, const float* factors, int count) {
  for (int j = 0; j < count; ++j) {
    hn::Store(hn::Mul(hn::Load(kFloats, x + j * kLanes), hn::Set(kFloats, factors[j])), kFloats,
              x + j * kLanes);
  }
}

// Reads the rows and does the first three stages, which stay within 8 coordinates.
template <class Element>
HWY_NOINLINE void load_first_stages(const RowRotation& rotation, const uint8_t* const* rows,
                                    float* y) {
  const int size = 1 << rotation.plan.log2_size;
  for (int j = 0; j < rotation.dim; j += 8) {
    const float* mu = rotation.center + j;
    const float* s = rotation.factor + j;
    const auto prepare = [mu, s](Column& x, int i) HWY_ATTR {
      x = hn::Mul(hn::Sub(x, hn::Set(kFloats, mu[i])), hn::Set(kFloats, s[i]));
    };
    Column x0, x1, x2, x3, x4, x5, x6, x7;
    load_columns<Element>(rows, j, x0, x1, x2, x3, x4, x5, x6, x7);
    prepare(x0, 0);
    prepare(x1, 1);
    prepare(x2, 2);
    prepare(x3, 3);
    prepare(x4, 4);
    prepare(x5, 5);
    prepare(x6, 6);
    prepare(x7, 7);
    if (j < size) butterfly8(x0, x1, x2, x3, x4, x5, x6, x7);
    Eight{y + j * kLanes, kLanes}.store(x0, x1, x2, x3, x4, x5, x6, x7);
  }
}

// The last three stages of a power of two from 64 on, and the norms while the columns are in
// registers: stage strides and the fold's first three halvings take the same eight.
HWY_INLINE void last_stages_norms(float* y, int size, Column& n2, Column& n1) {
  const int m = size / 8;
  HWY_ALIGN float squares[64 * kLanes];
  HWY_ALIGN float magnitudes[64 * kLanes];
  for (int i = 0; i < m; ++i) {
    const Eight eight{y + i * kLanes, m * kLanes};
    Column x0, x1, x2, x3, x4, x5, x6, x7;
    eight.load(x0, x1, x2, x3, x4, x5, x6, x7);
    butterfly8(x0, x1, x2, x3, x4, x5, x6, x7);
    eight.store(x0, x1, x2, x3, x4, x5, x6, x7);
    hn::Store(fold8(hn::Mul(x0, x0), hn::Mul(x1, x1), hn::Mul(x2, x2), hn::Mul(x3, x3),
                    hn::Mul(x4, x4), hn::Mul(x5, x5), hn::Mul(x6, x6), hn::Mul(x7, x7)),
              kFloats, squares + i * kLanes);
    hn::Store(fold8(hn::Abs(x0), hn::Abs(x1), hn::Abs(x2), hn::Abs(x3), hn::Abs(x4), hn::Abs(x5),
                    hn::Abs(x6), hn::Abs(x7)),
              kFloats, magnitudes + i * kLanes);
  }
  n2 = fold_columns(squares, m);
  n1 = fold_columns(magnitudes, m);
}

// The stages behind load_first_stages: y[dim], n2 = fold(y_j * y_j), n1 = fold(|y_j|).
HWY_NOINLINE void finish_rotation(const RowRotation& rotation, float* y, Column& n2, Column& n1) {
  constexpr int kFirst = 3;
  const int p = rotation.plan.log2_size;
  const int size = 1 << p;
  const int dim = rotation.dim;
  if (rotation.plan.is_power_of_two && rotation.plan.rounds == 1 && p >= 6) {
    fwht_stages(y, p, kFirst, p - 3);
    last_stages_norms(y, size, n2, n1);
    return;
  }
  fwht_stages(y, p, kFirst, p);
  if (!rotation.plan.is_power_of_two || rotation.plan.rounds == 2) {
    // Two rounds: 2^-p once, at the end. Two blocks: c after each.
    if (!rotation.plan.is_power_of_two) scale_columns(y, size, rotation.plan.block_scale);
    multiply_columns(y, rotation.signs_2, dim);
    float* last = y + (dim - size) * kLanes;
    fwht_stages(last, p, 0, p);
    scale_columns(last, size, rotation.plan.block_scale);
  }
  n2 = fold_squares(y, dim);
  n1 = fold_each(y, dim, [](Column v) HWY_ATTR { return hn::Abs(v); });
}

// Rows to rotated columns and their norms.
template <class Element>
HWY_INLINE void rotate_rows(const RowRotation& rotation, const uint8_t* const* rows, float* y,
                            Column& n2, Column& n1) {
  load_first_stages<Element>(rotation, rows, y);
  finish_rotation(rotation, y, n2, n1);
}

}  // namespace
}  // namespace pkv::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // PKV_CPU_ROTATE_INL_H
