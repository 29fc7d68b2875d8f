// docs/algorithm.md, sections 4.1 and 4.4.
#include "backends/cpu_ref/query.h"

#include <cmath>

#include "backends/cpu_ref/rotate.h"
#include "backends/cpu_ref/tensor.h"
#include "core/format/codec_sets.h"
#include "core/format/fold.h"

namespace pkv::cpu_ref {

RowQuery take_row_query(Scratch& scratch, const pkv_geometry& geometry, int32_t query_heads) {
  const int32_t group = query_heads / geometry.kv_heads;
  const int64_t d = geometry.head_dim;
  return {group, scratch.take<float>(group * d), scratch.take<float>(d)};
}

bool prepare_query(const pkv_codec_params& codec, const pkv_tensor& queries, int64_t entry,
                   int32_t kv_head, const RowQuery& out) {
  const int32_t d = codec.geometry->head_dim;
  const float* r = format::codec_row(codec, codec.inv_balance, entry, kv_head, d);
  const Rotation rotation = key_rotation(codec);

  // 4.1: q_sum = ((q_0 + q_1) + q_2) + ..
  for (int32_t g = 0; g < out.group; ++g) {
    float* q = out.heads + int64_t{g} * d;
    load_row(queries, q, d, entry, kv_head * out.group + g);
    for (int32_t j = 0; j < d; ++j) out.sum[j] = g == 0 ? q[j] : out.sum[j] + q[j];
  }

  // 4.1: Q' = rotate(q_sum * r), q'_g = rotate(q_g * r); 4.4: bad if fold(y_j^2) is not finite.
  bool is_good = true;
  for (int32_t g = 0; g <= out.group; ++g) {
    float* y = g < out.group ? out.heads + int64_t{g} * d : out.sum;
    for (int32_t j = 0; j < d; ++j) y[j] = y[j] * r[j];
    rotate(rotation, y);
    const float n2 = format::fold_each(d, [y](int j) { return y[j] * y[j]; });
    if (!std::isfinite(n2)) is_good = false;
  }
  return is_good;
}

}  // namespace pkv::cpu_ref
