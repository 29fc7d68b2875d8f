// Faults of fit, encode and the store.
#include <algorithm>
#include <vector>

#include "tests/conformance/mutants/mutant.h"

namespace pkv::mutants {
namespace {

// The records of one position, changed in the store.
struct Record {
  std::vector<uint8_t> planes[8];
  pkv_records records = {};

  explicit Record(const pkv_geometry& g) {
    const int32_t plane = g.head_dim / 8;
    const int32_t codes = (g.codec == PKV_CODEC_SCALAR5 ? 4 : 3) * plane;
    const int32_t factors = g.codec == PKV_CODEC_POLAR4 ? 2 * plane : 2;
    const int32_t sketch = g.sketch_bits == 0 ? 0 : g.value_dim / 8;
    const int32_t sizes[8] = {plane,
                              g.vote == PKV_VOTE_GRADED ? 2 : 0,
                              codes,
                              factors,
                              sketch,
                              (g.sketch_bits - 1) * sketch,
                              sketch == 0 ? 0 : 2,
                              g.value_norm == 0 ? 0 : 2};
    for (int p = 0; p < 8; ++p) planes[p].resize(static_cast<size_t>(std::max(sizes[p], 0)));
    const auto bytes = [this](int p) { return planes[p].empty() ? nullptr : planes[p].data(); };
    const auto numbers = [&](int p) { return reinterpret_cast<uint16_t*>(bytes(p)); };
    records.struct_size = sizeof records;
    records.row_tokens = 1;
    records.signs = bytes(0);
    records.vote_factors = numbers(1);
    records.codes = bytes(2);
    records.factors = numbers(3);
    records.value_signs = bytes(4);
    records.value_codes = bytes(5);
    records.value_factors = numbers(6);
    records.value_norms = numbers(7);
  }
  bool is_bad() const { return (records.factors[0] & 0x7fff) > 0x7f80; }
  bool is_zero() const { return records.factors[0] == 0; }
};

// Calls change(record) on each record that the call wrote, and stores it again if that says so.
template <class Change>
void for_records(const pkv_encode_args& a, Change change) {
  const pkv_geometry& g = *a.codec.geometry;
  for (int32_t i = 0; i < a.batch; ++i) {
    for (int32_t head = 0; head < g.kv_heads; ++head) {
      const int64_t row = int64_t{a.sequences[i]} * g.kv_heads + head;
      for (int64_t t = a.starts[i]; t < a.starts[i] + a.counts[i]; ++t) {
        Record record(g);
        sound().store_export(nullptr, nullptr, &g, &a.store, row, t, 1, &record.records);
        if (!change(record, t)) continue;
        sound().store_import(nullptr, nullptr, &g, &a.store, row, t, 1, &record.records);
      }
    }
  }
}

void flip_sign(const pkv_encode_args& a) {
  for_records(a, [](Record& record, int64_t t) {
    if (t == 4) record.records.signs[0] ^= 8;
    return t == 4;
  });
}

void flip_code(const pkv_encode_args& a) {
  for_records(a, [](Record& record, int64_t t) {
    if (t == 4) record.planes[2].back() ^= 0x80;
    return t == 4;
  });
}

void lower_factor(const pkv_encode_args& a) {
  for_records(a, [](Record& record, int64_t t) {
    if (t == 4) --record.records.factors[0];
    return t == 4;
  });
}

void lower_vote_factor(const pkv_encode_args& a) {
  if (a.codec.geometry->vote != PKV_VOTE_GRADED) return;
  for_records(a, [](Record& record, int64_t t) {
    if (t == 4) --record.records.vote_factors[0];
    return t == 4;
  });
}

// As if -0 were negative: an all-zero key has no sign bits then.
void clear_zero_signs(const pkv_encode_args& a) {
  for_records(a, [](Record& record, int64_t) {
    if (record.is_zero()) std::fill(record.planes[0].begin(), record.planes[0].end(), uint8_t{0});
    return record.is_zero();
  });
}

void zero_bad_factors(const pkv_encode_args& a) {
  for_records(a, [](Record& record, int64_t) {
    if (!record.is_bad()) return false;
    std::fill(record.planes[3].begin(), record.planes[3].end(), uint8_t{0});
    return true;
  });
}

void flip_sketch(const pkv_encode_args& a) {
  if (a.codec.geometry->sketch_bits == 0) return;
  for_records(a, [](Record& record, int64_t t) {
    if (t == 2) record.planes[5].front() ^= 1;
    return t == 2;
  });
}

// The first sketch behind the beginning of a call that does not begin with one.
void skip_first_sketch(const pkv_encode_args& a) {
  const int32_t p = a.codec.geometry->sketch_stride;
  if (p == 0) return;
  for_records(a, [&](Record& record, int64_t t) {
    const bool is_first = std::any_of(a.starts, a.starts + a.batch, [&](int64_t start) {
      return start % p != 0 && t == (start + p - 1) / p * p;
    });
    if (is_first) record.records.value_factors[0] = 0;
    return is_first;
  });
}

void count_bad_keys(const pkv_encode_args& a) {
  const int32_t h = a.codec.geometry->kv_heads;
  for (int32_t r = 0; a.first_bad != nullptr && r < a.batch * h; ++r) {
    if (a.first_bad[r] >= 0) ++a.good_counts[a.sequences[r / h] * h + r % h];
  }
}

void count_from_the_call(const pkv_encode_args& a) {
  const int32_t h = a.codec.geometry->kv_heads;
  for (int32_t r = 0; a.first_bad != nullptr && r < a.batch * h; ++r) {
    if (a.first_bad[r] >= 0) a.first_bad[r] -= a.starts[r / h];
  }
}

void lose_occupancy(const pkv_encode_args& a) {
  if (a.occupancy == nullptr || a.batch == 0 || a.counts[0] == 0) return;
  int32_t* row = a.occupancy + int64_t{a.sequences[0]} * a.codec.geometry->kv_heads *
                                   (a.codec.geometry->head_dim / 8) * 256;
  --*std::max_element(row, row + 256);
}

// Sums of this call alone instead of running ones.
void forget_sums(pkv_encode_args& a) {
  const pkv_geometry& g = *a.codec.geometry;
  for (int32_t i = 0; a.value_sums != nullptr && i < a.batch; ++i) {
    const int64_t width = int64_t{g.kv_heads} * g.value_dim;
    std::fill_n(a.value_sums + a.sequences[i] * width, width, 0.0);
  }
}

void forget_key_strides(pkv_encode_args& a) { forget_strides(a.keys); }
void forget_value_strides(pkv_encode_args& a) { forget_strides(a.values); }
void do_eight_entries(pkv_encode_args& a) { a.batch = std::min(a.batch, 8); }

// The parameters of head 0 for all heads.
void use_first_head(pkv_encode_args& a) {
  static thread_local std::vector<float> center;
  const pkv_geometry& g = *a.codec.geometry;
  center.clear();
  for (int32_t head = 0; head < g.kv_heads; ++head) {
    center.insert(center.end(), a.codec.center, a.codec.center + g.head_dim);
  }
  a.codec.center = center.data();
}

void drop_last_key(pkv_fit_args& a) {
  static thread_local int64_t shape[3];
  std::copy_n(a.keys.shape, 3, shape);
  if (shape[1] > 0 && a.values.ndim == 0) --shape[1];
  a.keys.shape = shape;
}

void double_squares(const pkv_fit_args& a) {
  for (int32_t j = 0; j < a.geometry->head_dim; ++j) a.key_squares[j] *= 1.0 + 0x1p-12;
}

void count_one_more(const pkv_fit_args& a) { ++a.query_counts[0]; }
void count_weights(const pkv_fit_args& a) { a.key_counts[0] = a.key_weights[0]; }
void forget_weights(pkv_fit_args& a) { a.weights = nullptr; }
void count_heads(pkv_fit_args& a) { a.queries_as = PKV_FIT_QUERIES_HEADS; }

// The weights of head 0 for all heads.
void use_first_weights(pkv_fit_args& a) {
  static thread_local std::vector<int32_t> weights;
  weights.clear();
  for (int32_t head = 0; a.weights != nullptr && head < a.geometry->kv_heads; ++head) {
    weights.insert(weights.end(), a.weights, a.weights + a.keys.shape[1]);
  }
  if (a.weights != nullptr) a.weights = weights.data();
}

// Canonical sketches of a range that does not begin with one, counted from the position where the
// last one in front of it lies.
template <class Call>
pkv_status with_early_sketches(const pkv_geometry& g, int64_t begin, const pkv_records* records,
                               Call call) {
  if (g.sketch_stride == 0 || begin % g.sketch_stride == 0) return call(records);
  pkv_records early = *records;
  early.value_signs += g.value_dim / 8;
  early.value_codes += (g.sketch_bits - 1) * g.value_dim / 8;
  early.value_factors += 1;
  return call(&early);
}

pkv_status import_early(pkv_backend_device* device, pkv_backend_stream* stream,
                        const pkv_geometry* geometry, const pkv_store* store, int64_t row,
                        int64_t begin, int64_t count, const pkv_records* source) {
  return with_early_sketches(*geometry, begin, source, [&](const pkv_records* records) {
    return sound().store_import(device, stream, geometry, store, row, begin, count, records);
  });
}

pkv_status export_early(pkv_backend_device* device, pkv_backend_stream* stream,
                        const pkv_geometry* geometry, const pkv_store* store, int64_t row,
                        int64_t begin, int64_t count, const pkv_records* target) {
  return with_early_sketches(*geometry, begin, target, [&](const pkv_records* records) {
    return sound().store_export(device, stream, geometry, store, row, begin, count, records);
  });
}

pkv_status import_at_zero(pkv_backend_device* device, pkv_backend_stream* stream,
                          const pkv_geometry* geometry, const pkv_store* store, int64_t row,
                          int64_t /*begin*/, int64_t count, const pkv_records* source) {
  return sound().store_import(device, stream, geometry, store, row, 0, count, source);
}

// One record more than asked for, where there is room.
pkv_status export_one_more(pkv_backend_device* device, pkv_backend_stream* stream,
                           const pkv_geometry* geometry, const pkv_store* store, int64_t row,
                           int64_t begin, int64_t count, const pkv_records* target) {
  const int64_t more = begin + count < store->capacity ? 1 : 0;
  return sound().store_export(device, stream, geometry, store, row, begin, count + more, target);
}

void ignore_sets(pkv_encode_args& a) { forget_sets(a.codec); }

constexpr auto kEncode = &pkv_backend::encode;
constexpr auto kFit = &pkv_backend::fit;

constexpr Mutant kMutants[] = {
    {"fit_drops_last_key", [](pkv_backend& t) { t.fit.run = run_changed<kFit, drop_last_key>; }},
    {"fit_squares_off", [](pkv_backend& t) { t.fit.run = run_spoiled<kFit, double_squares>; }},
    {"fit_counts_query_twice",
     [](pkv_backend& t) { t.fit.run = run_spoiled<kFit, count_one_more>; }},
    {"fit_count_is_weight", [](pkv_backend& t) { t.fit.run = run_spoiled<kFit, count_weights>; }},
    {"fit_ignores_weights", [](pkv_backend& t) { t.fit.run = run_changed<kFit, forget_weights>; }},
    {"fit_first_weights", [](pkv_backend& t) { t.fit.run = run_changed<kFit, use_first_weights>; }},
    {"fit_counts_heads", [](pkv_backend& t) { t.fit.run = run_changed<kFit, count_heads>; }},
    {"encode_sign_bit", [](pkv_backend& t) { t.encode.run = run_spoiled<kEncode, flip_sign>; }},
    {"encode_code_bit", [](pkv_backend& t) { t.encode.run = run_spoiled<kEncode, flip_code>; }},
    {"encode_factor_ulp",
     [](pkv_backend& t) { t.encode.run = run_spoiled<kEncode, lower_factor>; }},
    {"encode_vote_factor_ulp",
     [](pkv_backend& t) { t.encode.run = run_spoiled<kEncode, lower_vote_factor>; }},
    {"encode_minus_zero",
     [](pkv_backend& t) { t.encode.run = run_spoiled<kEncode, clear_zero_signs>; }},
    {"encode_bad_key_factor",
     [](pkv_backend& t) { t.encode.run = run_spoiled<kEncode, zero_bad_factors>; }},
    {"encode_sketch_bit", [](pkv_backend& t) { t.encode.run = run_spoiled<kEncode, flip_sketch>; }},
    {"encode_skips_first_sketch",
     [](pkv_backend& t) { t.encode.run = run_spoiled<kEncode, skip_first_sketch>; }},
    {"encode_counts_bad_keys",
     [](pkv_backend& t) { t.encode.run = run_spoiled<kEncode, count_bad_keys>; }},
    {"encode_first_bad_of_call",
     [](pkv_backend& t) { t.encode.run = run_spoiled<kEncode, count_from_the_call>; }},
    {"encode_loses_occupancy",
     [](pkv_backend& t) { t.encode.run = run_spoiled<kEncode, lose_occupancy>; }},
    {"encode_overwrites_sums",
     [](pkv_backend& t) { t.encode.run = run_changed<kEncode, forget_sums>; }},
    {"encode_ignores_key_strides",
     [](pkv_backend& t) { t.encode.run = run_changed<kEncode, forget_key_strides>; }},
    {"encode_ignores_value_strides",
     [](pkv_backend& t) { t.encode.run = run_changed<kEncode, forget_value_strides>; }},
    {"encode_eight_entries",
     [](pkv_backend& t) { t.encode.run = run_changed<kEncode, do_eight_entries>; }},
    {"encode_ignores_sets",
     [](pkv_backend& t) { t.encode.run = run_changed<kEncode, ignore_sets>; }},
    {"encode_first_head",
     [](pkv_backend& t) { t.encode.run = run_changed<kEncode, use_first_head>; }},
    {"store_imports_at_zero", [](pkv_backend& t) { t.store_import = import_at_zero; }},
    {"store_imports_sketch_early", [](pkv_backend& t) { t.store_import = import_early; }},
    {"store_exports_sketch_early", [](pkv_backend& t) { t.store_export = export_early; }},
    {"store_exports_one_more", [](pkv_backend& t) { t.store_export = export_one_more; }},
};

}  // namespace

std::span<const Mutant> encode_mutants() { return kMutants; }

}  // namespace pkv::mutants
