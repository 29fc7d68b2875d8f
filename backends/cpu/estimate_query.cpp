// What an estimate needs of the query. docs/algorithm.md, section 6.1. Exact, as written.
#include <algorithm>
#include <cmath>

#include "backends/cpu/estimate.h"
#include "backends/cpu/rint.h"
#include "core/format/codec_sets.h"
#include "core/format/fold.h"
#include "core/format/rotation.h"

namespace pkv::cpu {
namespace {

constexpr int32_t kPaddedMost = 640;

// M_g, c_g,j and unit_g
void prepare_scalar(const float* y, int32_t g, const int32_t* order, Estimator& e) {
  float M = 0.0F;
  for (int32_t j = 0; j < e.d; ++j) M = std::max(M, std::fabs(y[j]));
  int16_t rounded[kPaddedMost];
  for (int32_t j = 0; j < e.d; ++j) {
    rounded[j] = M == 0.0F ? int16_t{0} : static_cast<int16_t>(rint_small((32512.0F * y[j]) / M));
  }
  int16_t* c = e.c + int64_t{g} * e.padded;
  uint32_t* sums = e.c_sums + int64_t{g} * kSegments;
  std::fill_n(sums, kSegments, 0U);
  for (int32_t entry = 0; entry < e.padded; ++entry) {
    c[entry] = order[entry] < 0 ? int16_t{0} : rounded[order[entry]];
    sums[entry / kSegment] += static_cast<uint32_t>(int32_t{255} * c[entry]);
  }
  e.unit[g] = (M / 32512.0F) / e.gain;
}

}  // namespace

Estimator take_estimator(Scratch& scratch, const Isa& isa, const pkv_geometry& geometry,
                         int32_t query_heads) {
  Estimator e{};
  e.isa = &isa;
  e.codec = geometry.codec;
  e.d = geometry.head_dim;
  e.group = query_heads / geometry.kv_heads;
  e.padded = static_cast<int32_t>(round_up(e.d, 128));
  e.gain = format::rotation_plan(e.d, geometry.rounds).gain;
  const int64_t entries = int64_t{e.group} * e.padded;
  if (e.codec == PKV_CODEC_POLAR4) {
    e.q = scratch.take<float>(entries);
    e.products = scratch.take<float>(int64_t{kEstimateStep} * e.padded);
  } else {
    e.c = scratch.take<int16_t>(entries);
    e.c_sums = scratch.take<uint32_t>(int64_t{e.group} * kSegments);
    e.levels = scratch.take<int16_t>(int64_t{kEstimateStep} * e.padded);
  }
  e.unit = scratch.take<float>(e.group);
  e.bias = scratch.take<float>(e.group);
  return e;
}

void prepare_estimator(const pkv_codec_params& codec, const RowQuery& query, int64_t i,
                       int32_t kv_head, const RecordRow& records, Estimator& e) {
  e.records = records;
  const float* mu = format::codec_row(codec, codec.center, i, kv_head, e.d);
  int32_t order[kPaddedMost];
  find_entry_order(e, order);
  const bool is_polar = e.codec == PKV_CODEC_POLAR4;
  if (is_polar) {
    std::fill_n(e.products, int64_t{kEstimateStep} * e.padded, 0.0F);
  } else {
    std::fill_n(e.levels, int64_t{kEstimateStep} * e.padded, int16_t{0});
  }
  for (int32_t g = 0; g < e.group; ++g) {
    const float* raw = query.raw + int64_t{g} * e.d;
    const float* y = query.heads + int64_t{g} * e.d;
    // b_g = fold(q_g,j * mu_j), of the raw query
    e.bias[g] = format::fold_each(e.d, [&](int j) { return raw[j] * mu[j]; });
    if (is_polar) {
      float* q = e.q + int64_t{g} * e.padded;
      std::copy_n(y, e.d, q);
      std::fill(q + e.d, q + e.padded, 0.0F);
    } else {
      prepare_scalar(y, g, order, e);
    }
  }
}

}  // namespace pkv::cpu
