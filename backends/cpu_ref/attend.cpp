// Stage attend: exact softmax over the dense parts and the fetched rows, and the tail (tail.cpp).
// docs/algorithm.md, section 8.
// Bounded: in double, rounded once to fp32. The logits of all tokens are kept, so that the maximum
// is known before the first weight; a row of weight 0 is not read.
#include <algorithm>
#include <cmath>
#include <limits>

#include "backends/cpu_ref/check.h"
#include "backends/cpu_ref/device.h"
#include "backends/cpu_ref/logit.h"
#include "backends/cpu_ref/query.h"
#include "backends/cpu_ref/stages.h"
#include "backends/cpu_ref/tail.h"
#include "backends/cpu_ref/tensor.h"

namespace pkv::cpu_ref {
namespace {

constexpr double kNothing = -std::numeric_limits<double>::infinity();

struct Temporaries {
  RowQuery query;
  double* logits;       // [tokens]: parts, fetched rows, tail
  uint8_t* is_fetched;  // [candidates_stride]
};

Temporaries take_temporaries(Scratch& scratch, const pkv_attend_args& a) {
  Temporaries result = {};
  result.query = take_row_query(scratch, *a.codec.geometry, a.query_heads);
  int64_t tokens = a.k + tail_tokens(a);
  for (int32_t p = 0; p < a.part_count; ++p) tokens += a.parts[p].keys.shape[2];
  if (a.tail != PKV_TAIL_DROP) result.is_fetched = scratch.take<uint8_t>(a.candidates_stride);
  result.logits = scratch.take<double>(tokens);
  return result;
}

pkv_status check_rows(const pkv_host* host, const pkv_tensor& keys, const pkv_tensor& values) {
  const pkv_status status = check_floats(host, "attended keys", keys);
  return status != PKV_OK ? status : check_floats(host, "attended values", values);
}

pkv_status supports(pkv_backend_device* device, const pkv_attend_args* args) {
  const pkv_host* host = device->host;
  const pkv_geometry& geometry = *args->codec.geometry;
  pkv_status status = check_geometry(host, geometry);
  if (status != PKV_OK) return status;
  status =
      check_range(host, "value_dim", geometry.value_dim, format::kMinHeadDim, format::kMaxHeadDim);
  if (status != PKV_OK) return status;
  status = check_group(host, args->query_heads, geometry.kv_heads);
  if (status != PKV_OK) return status;
  status = check_floats(host, "queries", args->queries);
  if (status != PKV_OK) return status;
  status = check_floats(host, "output", args->output);
  if (status != PKV_OK) return status;
  status = check_range(host, "part_count", args->part_count, 0, PKV_MAX_PARTS);
  if (status != PKV_OK) return status;
  for (int32_t p = 0; p < args->part_count; ++p) {
    status = check_rows(host, args->parts[p].keys, args->parts[p].values);
    if (status != PKV_OK) return status;
  }
  status = check_range(host, "k", args->k, 0, format::kMaxK);
  if (status != PKV_OK) return status;
  if (args->k > 0) {
    status = check_rows(host, args->row_keys, args->row_values);
    if (status != PKV_OK) return status;
  }
  status = check_tail(host, *args);
  if (status != PKV_OK) return status;
  return check_logits(host, args->scale, args->soft_cap);
}

pkv_status scratch_bytes(pkv_backend_device* /*device*/, const pkv_attend_args* args,
                         int64_t* out) {
  Scratch scratch(nullptr);
  take_temporaries(scratch, *args);
  *out = scratch.bytes();
  return PKV_OK;
}

// Where a vector lies, and its dtype.
struct Vector {
  const std::byte* data;
  pkv_dtype dtype;

  void load(double* out, int32_t count) const { load_elements(dtype, data, out, count); }
};

// K or V of a part's token `t` for entry `i`.
Vector part_vector(const pkv_attend_args& a, const pkv_part& part, const pkv_tensor& tensor,
                   const pkv_pages& pages, int64_t i, int32_t head, int64_t t) {
  if (pages.table == nullptr) return {row_at(tensor, i, head, t), tensor.dtype};
  const int64_t start = part.starts != nullptr ? part.starts[i] : 0;
  return {token_at(tensor, pages, a.batch.sequences[i], head, start + t), tensor.dtype};
}

// Calls visit(keys, values) with the vectors of the tokens with original K and V, in a fixed order:
// of each part the first lengths[i], then the counted fetched rows. Nothing beyond is touched.
template <class Visit>
void for_each_row(const pkv_attend_args& a, int64_t i, int32_t head, Visit visit) {
  for (int32_t p = 0; p < a.part_count; ++p) {
    const pkv_part& part = a.parts[p];
    const int64_t length = part.lengths != nullptr ? part.lengths[i] : part.keys.shape[2];
    for (int64_t t = 0; t < length; ++t) {
      visit(part_vector(a, part, part.keys, part.key_pages, i, head, t),
            part_vector(a, part, part.values, part.value_pages, i, head, t));
    }
  }
  if (a.k == 0) return;
  const int32_t count = a.counts[i * a.codec.geometry->kv_heads + head];
  for (int64_t slot = 0; slot < count; ++slot) {
    visit(Vector{row_at(a.row_keys, i, head, slot), a.row_keys.dtype},
          Vector{row_at(a.row_values, i, head, slot), a.row_values.dtype});
  }
}

// One query head of one row.
class Head {
 public:
  Head(const pkv_attend_args& a, const Tail& tail, int64_t i, int32_t kv_head, int32_t query_head,
       double* logits)
      : a_(a),
        tail_(tail),
        i_(i),
        kv_head_(kv_head),
        query_head_(query_head),
        logit_(a.scale, a.soft_cap),
        logits_(logits) {}

  void attend() {
    compute_logits();
    const double sink = sink_logit();
    double max = sink;
    for (int64_t m = 0; m < count_; ++m) {
      if (logits_[m] > max || std::isnan(logits_[m])) max = logits_[m];
    }
    double sum = 0.0;
    double out[format::kMaxHeadDim] = {};
    if (max != kNothing) {
      sum = std::exp(sink - max);
      for (int64_t m = 0; m < count_; ++m) {
        logits_[m] = std::exp(logits_[m] - max);  // from here on: weights
        sum += logits_[m];
      }
      add_values(out);
    }
    write(out, sum, max);
  }

 private:
  int32_t dv() const { return a_.codec.geometry->value_dim; }

  // 8.1: of the head's sink; none: -inf.
  double sink_logit() const {
    return a_.sink_logits == nullptr ? kNothing : static_cast<double>(a_.sink_logits[query_head_]);
  }

  void compute_logits() {
    const int32_t d = a_.codec.geometry->head_dim;
    double q[format::kMaxHeadDim];
    load_row(a_.queries, q, d, i_, query_head_);
    count_ = 0;
    for_each_row(a_, i_, kv_head_, [&](const Vector& keys, const Vector& /*values*/) {
      double k[format::kMaxHeadDim];
      keys.load(k, d);
      double dot = 0.0;
      for (int32_t j = 0; j < d; ++j) dot += q[j] * k[j];
      logits_[count_++] = logit_(dot);
    });
    count_ += tail_.logits(query_head_, logits_ + count_);
  }

  // out += sum of weight * value, in the order of the logits.
  void add_values(double* out) const {
    int64_t m = 0;
    for_each_row(a_, i_, kv_head_, [&](const Vector& /*keys*/, const Vector& values) {
      const double weight = logits_[m++];
      if (weight == 0.0) return;
      double v[format::kMaxHeadDim];
      values.load(v, dv());
      for (int32_t j = 0; j < dv(); ++j) out[j] += weight * v[j];
    });
    tail_.add_values(query_head_, logits_ + m, out);
  }

  // Nothing to attend to (max = -inf): output 0, lse -inf.
  void write(const double* out, double sum, double max) const {
    std::byte* output = row_at(a_.output, i_, query_head_);
    const bool is_empty = max == kNothing;
    for (int32_t j = 0; j < dv(); ++j) {
      store_element(a_.output.dtype, output, j, is_empty ? 0.0F : static_cast<float>(out[j] / sum));
    }
    if (a_.lse != nullptr) {
      a_.lse[i_ * a_.query_heads + query_head_] =
          static_cast<float>(is_empty ? kNothing : max + std::log(sum));
    }
  }

  const pkv_attend_args& a_;
  const Tail& tail_;
  int64_t i_;
  int32_t kv_head_;
  int32_t query_head_;
  Logit logit_;
  double* logits_;
  int64_t count_ = 0;
};

// 4.4: a bad query gives output 0 and lse -inf for all heads of the group.
void write_empty(const pkv_attend_args& a, int64_t i, int32_t query_head) {
  std::byte* output = row_at(a.output, i, query_head);
  for (int32_t j = 0; j < a.codec.geometry->value_dim; ++j) {
    store_element(a.output.dtype, output, j, 0.0F);
  }
  if (a.lse != nullptr) {
    a.lse[i * a.query_heads + query_head] = -std::numeric_limits<float>::infinity();
  }
}

void attend_group(const pkv_attend_args& a, const Temporaries& temporaries, int64_t i,
                  int32_t kv_head) {
  const int32_t G = temporaries.query.group;
  const bool is_good = prepare_query(a.codec, a.queries, i, kv_head, temporaries.query);
  const Tail tail(a, i, kv_head, temporaries.is_fetched);
  for (int32_t g = 0; g < G; ++g) {
    const int32_t query_head = kv_head * G + g;
    if (is_good) {
      Head(a, tail, i, kv_head, query_head, temporaries.logits).attend();
    } else {
      write_empty(a, i, query_head);
    }
  }
}

pkv_status run(pkv_backend_device* /*device*/, pkv_backend_stream* /*stream*/,
               const pkv_attend_args* args, void* scratch) {
  Scratch pieces(scratch);
  const Temporaries temporaries = take_temporaries(pieces, *args);
  for (int64_t i = 0; i < args->batch.batch; ++i) {
    for (int32_t head = 0; head < args->codec.geometry->kv_heads; ++head) {
      attend_group(*args, temporaries, i, head);
    }
  }
  return PKV_OK;
}

}  // namespace

pkv_attend_slots attend_slots() { return {supports, scratch_bytes, run}; }

}  // namespace pkv::cpu_ref
