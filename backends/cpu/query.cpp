// docs/algorithm.md, sections 2.3, 4.1 and 4.4.
// A handful of vectors per row: loops that any compiler turns into vectors, no dispatch.
// Differs from cpu_ref: butterflies in runs of H neighbours; each is the same operation.
#include "backends/cpu/query.h"

#include <cmath>

#include "backends/cpu/tensor.h"
#include "core/format/codec_sets.h"
#include "core/format/fold.h"
#include "core/format/rotation.h"

namespace pkv::cpu {
namespace {

// FWHT of `size` elements, a power of two, in place, unscaled.
void fwht(float* x, int32_t size) {
  for (int32_t i = 0; i + 1 < size; i += 2) {
    const float a = x[i];
    const float b = x[i + 1];
    x[i] = a + b;
    x[i + 1] = a - b;
  }
  for (int32_t H = 2; H < size; H *= 2) {
    for (int32_t begin = 0; begin < size; begin += 2 * H) {
      float* low = x + begin;
      float* high = low + H;
      for (int32_t i = 0; i < H; ++i) {
        const float a = low[i];
        const float b = high[i];
        low[i] = a + b;
        high[i] = a - b;
      }
    }
  }
}

void multiply(float* x, const float* y, int32_t count) {
  for (int32_t j = 0; j < count; ++j) x[j] = y[j] * x[j];
}

void scale_by(float* x, float factor, int32_t count) {
  for (int32_t j = 0; j < count; ++j) x[j] = x[j] * factor;
}

void rotate(const pkv_codec_params& codec, float* x) {
  const int32_t d = codec.geometry->head_dim;
  const format::RotationPlan plan = format::rotation_plan(d, codec.geometry->rounds);
  const int32_t size = 1 << plan.log2_size;
  multiply(x, codec.signs_1, d);
  fwht(x, size);
  if (plan.is_power_of_two) {
    if (plan.rounds == 1) return;
    multiply(x, codec.signs_2, d);
    fwht(x, size);
    scale_by(x, plan.block_scale, d);
    return;
  }
  scale_by(x, plan.block_scale, size);
  multiply(x, codec.signs_2, d);
  fwht(x + (d - size), size);
  scale_by(x + (d - size), plan.block_scale, size);
}

}  // namespace

RowQuery take_row_query(Scratch& scratch, const pkv_geometry& geometry, int32_t query_heads) {
  const int32_t group = query_heads / geometry.kv_heads;
  const int64_t d = geometry.head_dim;
  return {group, scratch.take<float>(group * d), scratch.take<float>(group * d),
          scratch.take<float>(d)};
}

bool prepare_query(const pkv_codec_params& codec, const pkv_tensor& queries, int64_t entry,
                   int32_t kv_head, const RowQuery& out) {
  const int32_t d = codec.geometry->head_dim;
  const float* r = format::codec_row(codec, codec.inv_balance, entry, kv_head, d);
  for (int32_t g = 0; g < out.group; ++g) {
    float* q = out.raw + int64_t{g} * d;
    load_row(queries, q, d, entry, kv_head * out.group + g);
    for (int32_t j = 0; j < d; ++j) out.sum[j] = g == 0 ? q[j] : out.sum[j] + q[j];
    for (int32_t j = 0; j < d; ++j) out.heads[int64_t{g} * d + j] = q[j] * r[j];
  }
  multiply(out.sum, r, d);

  bool is_good = true;  // 4.4: bad if fold(y_j^2) is not finite
  for (int32_t g = 0; g <= out.group; ++g) {
    float* y = g < out.group ? out.heads + int64_t{g} * d : out.sum;
    rotate(codec, y);
    const float n2 = format::fold_each(d, [y](int j) { return y[j] * y[j]; });
    if (!std::isfinite(n2)) is_good = false;
  }
  return is_good;
}

void unrotate_value(const pkv_codec_params& codec, float* x) {
  const int32_t dv = codec.geometry->value_dim;
  const format::RotationPlan plan = format::rotation_plan(dv, 1);
  const int32_t size = 1 << plan.log2_size;
  if (!plan.is_power_of_two) {
    fwht(x + (dv - size), size);
    scale_by(x + (dv - size), plan.block_scale, size);
    multiply(x, codec.value_signs_2, dv);
  }
  fwht(x, size);
  scale_by(x, plan.block_scale, plan.is_power_of_two ? 0 : size);
  multiply(x, codec.value_signs_1, dv);
  if (plan.is_power_of_two) scale_by(x, 1.0F / plan.gain, dv);
}

}  // namespace pkv::cpu
