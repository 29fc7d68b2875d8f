// Stage encode: keys and values to key records. docs/algorithm.md, section 3.
// Exact: fp32, one rounding per written operation, every sum a fold.
#include <algorithm>
#include <cmath>

#include "backends/cpu_ref/check.h"
#include "backends/cpu_ref/device.h"
#include "backends/cpu_ref/fold8.h"
#include "backends/cpu_ref/quantiser.h"
#include "backends/cpu_ref/rotate.h"
#include "backends/cpu_ref/stages.h"
#include "backends/cpu_ref/store.h"
#include "backends/cpu_ref/tensor.h"
#include "core/format/codec_sets.h"
#include "core/format/fold.h"
#include "core/format/inv_sqrt.h"

namespace pkv::cpu_ref {
namespace {

pkv_status supports(pkv_backend_device* device, const pkv_encode_args* args) {
  const pkv_host* host = device->host;
  const pkv_geometry& geometry = *args->codec.geometry;
  pkv_status status = check_geometry(host, geometry);
  if (status != PKV_OK) return status;
  status = check_floats(host, "keys", args->keys);
  if (status != PKV_OK) return status;
  if (args->values.ndim != 0) {
    status = check_range(host, "value_dim", geometry.value_dim, format::kMinHeadDim,
                         format::kMaxHeadDim);
    return status != PKV_OK ? status : check_floats(host, "values", args->values);
  }
  // Without values there is nothing to make a sketch or a norm of.
  status = check_range(host, "without values sketch_bits", geometry.sketch_bits, 0, 0);
  if (status != PKV_OK) return status;
  return check_range(host, "without values value_norm", geometry.value_norm, 0, 0);
}

pkv_status scratch_bytes(pkv_backend_device* /*device*/, const pkv_encode_args* /*args*/,
                         int64_t* out) {
  *out = 0;
  return PKV_OK;
}

float sum_of_squares(const float* x, int32_t count) {
  return format::fold_each(count, [x](int j) { return x[j] * x[j]; });
}

// 3.2: bit j of byte b is 1 where y[8b+j] >= 0.
void write_signs(const float* y, int32_t dim, uint8_t* signs) {
  std::fill_n(signs, dim / 8, uint8_t{0});
  for (int32_t j = 0; j < dim; ++j) {
    if (y[j] >= 0.0F) set_bit(signs, j);
  }
}

// Bit plane p holds bit p of the codes.
void write_codes(const uint8_t* code, int32_t dim, int32_t planes, uint8_t* codes) {
  std::fill_n(codes, planes * (dim / 8), uint8_t{0});
  for (int32_t p = 0; p < planes; ++p) {
    for (int32_t j = 0; j < dim; ++j) {
      if (((code[j] >> p) & 1) != 0) set_bit(codes + p * (dim / 8), j);
    }
  }
}

// 3.4, scalar4 and scalar5, and 3.5: one unit and one factor for the whole vector. n2 = 0: codes
// and factor 0 (3.1).
uint16_t write_scalar(const Quantiser& quantiser, const float* y, float n2, int32_t dim,
                      uint8_t* codes) {
  uint8_t code[format::kMaxHeadDim] = {};
  uint16_t factor = 0;
  if (n2 != 0.0F) {
    const float u = std::sqrt(n2) * format::inv_sqrt(dim);
    for (int32_t j = 0; j < dim; ++j) {
      code[j] = static_cast<uint8_t>(quantiser.code(u, std::fabs(y[j])));
    }
    const float product =
        format::fold_each(dim, [&](int j) { return quantiser.levels[code[j]] * std::fabs(y[j]); });
    factor = format::float_to_bf16(n2 / product);
  }
  write_codes(code, dim, quantiser.planes, codes);
  return factor;
}

// 3.4, polar4: a unit and a factor for each subspace.
void write_polar(const Quantiser& quantiser, const float* y, float n2, int32_t dim, uint8_t* codes,
                 uint16_t* factors) {
  uint8_t code[format::kMaxHeadDim] = {};
  for (int32_t b = 0; b < dim / 8; ++b) {
    const float* yb = y + 8 * b;
    uint8_t* code_b = code + 8 * b;
    const float rho = std::sqrt(fold8([yb](int j) { return yb[j] * yb[j]; }));
    factors[b] = 0;
    if (n2 == 0.0F || rho == 0.0F) continue;
    for (int32_t j = 0; j < 8; ++j) {
      code_b[j] = static_cast<uint8_t>(quantiser.code(rho, std::fabs(yb[j])));
    }
    const float product =
        fold8([&](int j) { return quantiser.levels[code_b[j]] * std::fabs(yb[j]); });
    const float alpha = product / rho;
    factors[b] = format::float_to_bf16(rho / alpha);
  }
  write_codes(code, dim, quantiser.planes, codes);
}

// What encode computes of a token before it knows whether the key is bad.
struct Token {
  float y[format::kMaxHeadDim];       // the rotated key
  float n2;                           // its squared norm
  float v[format::kMaxHeadDim];       // the value as given
  float v2;                           // its squared norm, 0 without values
  float sketch[format::kMaxHeadDim];  // the rotated value
  float sketch_n2;                    // its squared norm, 0 at a position without sketch
};

// The records of one row and what its codec says.
struct Row {
  const pkv_geometry& geometry;
  RecordRow records;
  format::RecordSizes sizes;
  Quantiser key_quantiser;
  Quantiser value_quantiser;
};

// 3, 3.5: loads and rotates token t of entry i and KV head `head`, which goes to `position`.
void load_token(const pkv_encode_args& a, int64_t i, int32_t head, int64_t t, int64_t position,
                Token& token) {
  const pkv_codec_params& codec = a.codec;
  const int32_t d = codec.geometry->head_dim;
  const int32_t dv = codec.geometry->value_dim;
  const float* mu = format::codec_row(codec, codec.center, i, head, d);
  const float* s = format::codec_row(codec, codec.balance, i, head, d);
  load_row(a.keys, token.y, d, i, head, t);
  for (int32_t j = 0; j < d; ++j) token.y[j] = s[j] * (token.y[j] - mu[j]);
  rotate(key_rotation(codec), token.y);
  token.n2 = sum_of_squares(token.y, d);

  token.v2 = 0.0F;
  token.sketch_n2 = 0.0F;
  if (a.values.ndim == 0) return;
  load_row(a.values, token.v, dv, i, head, t);
  token.v2 = sum_of_squares(token.v, dv);
  if (!has_sketch(*codec.geometry, position)) return;
  const float* mu_v = format::codec_row(codec, codec.value_center, i, head, dv);
  for (int32_t j = 0; j < dv; ++j) token.sketch[j] = token.v[j] - mu_v[j];
  rotate(value_rotation(codec), token.sketch);
  token.sketch_n2 = sum_of_squares(token.sketch, dv);
}

// 3.6: sign bits and codes 0, every factor and norm NaN.
void write_bad(const Row& row, int64_t position) {
  std::fill_n(row.records.signs(position), row.sizes.signs, uint8_t{0});
  std::fill_n(row.records.codes(position), row.sizes.codes, uint8_t{0});
  for (int32_t b = 0; b < format::factors_per_key(row.geometry); ++b) {
    row.records.factors(position)[b] = format::kBf16Nan;
  }
  if (uint16_t* factor = row.records.vote_factor(position)) *factor = format::kBf16Nan;
  if (has_sketch(row.geometry, position)) {
    std::fill_n(row.records.value_signs(position), row.sizes.value_signs, uint8_t{0});
    std::fill_n(row.records.value_codes(position), row.sizes.value_codes, uint8_t{0});
    *row.records.value_factor(position) = format::kBf16Nan;
  }
  if (uint16_t* norm = row.records.value_norm(position)) *norm = format::kBf16Nan;
}

void write_good(const Row& row, int64_t position, const Token& token) {
  const int32_t d = row.geometry.head_dim;
  const int32_t dv = row.geometry.value_dim;
  const float* y = token.y;
  write_signs(y, d, row.records.signs(position));

  // 3.3: f = bf16(n2 / n1), 0 for a zero key (3.1).
  if (uint16_t* factor = row.records.vote_factor(position)) {
    const float n1 = format::fold_each(d, [y](int j) { return std::fabs(y[j]); });
    *factor = token.n2 == 0.0F ? uint16_t{0} : format::float_to_bf16(token.n2 / n1);
  }

  // 3.4
  if (row.geometry.codec == PKV_CODEC_POLAR4) {
    write_polar(row.key_quantiser, y, token.n2, d, row.records.codes(position),
                row.records.factors(position));
  } else {
    *row.records.factors(position) =
        write_scalar(row.key_quantiser, y, token.n2, d, row.records.codes(position));
  }

  // 3.5
  if (has_sketch(row.geometry, position)) {
    write_signs(token.sketch, dv, row.records.value_signs(position));
    *row.records.value_factor(position) = write_scalar(
        row.value_quantiser, token.sketch, token.sketch_n2, dv, row.records.value_codes(position));
  }
  if (uint16_t* norm = row.records.value_norm(position)) {
    *norm = format::float_to_bf16(std::sqrt(token.v2));
  }
}

// Entry i, KV head `head`: counts[i] tokens. Returns the first bad position or -1.
int64_t encode_row(const pkv_encode_args& a, int64_t i, int32_t head) {
  const pkv_geometry& geometry = *a.codec.geometry;
  const int32_t S = geometry.head_dim / 8;
  const int32_t dv = geometry.value_dim;
  const int64_t r = int64_t{a.sequences[i]} * geometry.kv_heads + head;
  const Row row = {geometry, RecordRow(geometry, a.store, a.sequences[i], head),
                   format::record_sizes(geometry), key_quantiser(geometry.codec),
                   value_quantiser(geometry.sketch_bits)};
  int64_t first_bad = -1;
  for (int64_t t = 0; t < a.counts[i]; ++t) {
    const int64_t position = a.starts[i] + t;
    Token token;
    load_token(a, i, head, t, position, token);
    if (!std::isfinite(token.n2) || !std::isfinite(token.v2) || !std::isfinite(token.sketch_n2)) {
      write_bad(row, position);
      if (first_bad < 0) first_bad = position;
      continue;
    }
    write_good(row, position, token);

    // 3.7
    ++a.good_counts[r];
    if (geometry.vote == PKV_VOTE_TIER) {
      for (int32_t b = 0; b < S; ++b)
        ++a.occupancy[(r * S + b) * 256 + row.records.signs(position)[b]];
    }
    if (a.values.ndim != 0 && a.value_sums != nullptr) {
      for (int32_t j = 0; j < dv; ++j) {
        a.value_sums[r * dv + j] += static_cast<double>(token.v[j]);
      }
    }
  }
  return first_bad;
}

pkv_status run(pkv_backend_device* /*device*/, pkv_backend_stream* /*stream*/,
               const pkv_encode_args* args, void* /*scratch*/) {
  const int32_t h = args->codec.geometry->kv_heads;
  for (int64_t i = 0; i < args->batch; ++i) {
    for (int32_t head = 0; head < h; ++head) {
      const int64_t first_bad = encode_row(*args, i, head);
      if (args->first_bad != nullptr) args->first_bad[i * h + head] = first_bad;
    }
  }
  return PKV_OK;
}

}  // namespace

pkv_encode_slots encode_slots() { return {supports, scratch_bytes, run}; }

}  // namespace pkv::cpu_ref
