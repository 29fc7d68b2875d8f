#include "fmt/core.h"
#include "tests/conformance/failure.h"
#include "tests/conformance/step_stage.h"

namespace pkv::conformance {
namespace {

template <class T>
std::vector<T> padded(const Rows<T>& rows, int64_t stride, T rest) {
  std::vector<T> flat;
  for (std::vector<T> row : rows) {
    row.resize(static_cast<size_t>(stride), rest);
    flat.insert(flat.end(), row.begin(), row.end());
  }
  return flat;
}

pkv_dense dense_part(Session& session, const PartInput& part) {
  pkv_dense dense = {};
  require("pkv_rows_init", pkv_rows_init(&dense.rows, sizeof dense.rows));
  dense.rows.keys = session.in("dense_keys", part.keys);
  if (part.values) dense.rows.values = session.in("dense_values", *part.values);
  dense.lengths = part.lengths ? part.lengths->data() : nullptr;
  return dense;
}

// Where attention is written.
struct AttentionOut {
  AttentionOut(Session& session, uint8_t fill, const AttendInput& input, int32_t dv)
      : tensor(empty_tensor(input.output_dtype, {input.batch.size(), input.query_heads, dv},
                            input.output_layout, fill)),
        heads(input.batch.size() * input.query_heads),
        output(session.out("output", tensor)),
        lse(session.out<float>("lse", heads)) {}

  Attention read(const Session& session) const {
    return {session.read("output", output, tensor), session.read(lse, heads)};
  }

  Tensor tensor;  // what `output` views
  int64_t heads;
  pkv_tensor output;
  float* lse;
};

}  // namespace

void* Step::scratch(Session& session) const {
  int64_t bytes = 0;
  require("pkv_plan_scratch_bytes", pkv_plan_scratch_bytes(plan_.get(), &bytes));
  return bytes == 0 ? nullptr : session.scratch("scratch", bytes);
}

pkv_status Step::passed(pkv_status status) const {
  const pkv_status waited = pkv_stream_sync(place_.stream());
  return status == PKV_OK ? waited : status;
}

std::vector<int64_t> Step::whole(int64_t rows, int64_t stride) const {
  return std::vector<int64_t>(static_cast<size_t>(rows), stride);
}

pkv_hits Step::hits_out(Session& session) const {
  const int64_t rows = int64_t{world_.setup().b} * world_.setup().h;
  const int64_t heads = int64_t{world_.setup().b} * world_.setup().hq();
  pkv_hits hits = {};
  require("pkv_hits_init", pkv_hits_init(&hits, sizeof hits));
  hits.positions = session.out<int32_t>("positions", rows * options_.k);
  hits.scores = session.out<float>("scores", rows * options_.k);
  hits.counts = session.out<int32_t>("counts", rows);
  hits.candidates = session.out<int32_t>("candidates", rows * stride_);
  hits.candidate_counts = session.out<int32_t>("candidate_counts", rows);
  if (options_.tail != PKV_TAIL_DROP) {
    hits.estimates = session.out<float>("estimates", heads * stride_);
    hits.rest_lse = session.out<float>("rest_lse", heads);
  }
  if (reads_samples(options_.tail)) {
    const int64_t samples = options_.tail_samples;
    hits.sample_estimates = session.out<float>("sample_estimates", heads * samples);
  }
  return hits;
}

Retrieved Step::read_hits(const Session& session, const pkv_hits& hits) const {
  const int64_t rows = int64_t{world_.setup().b} * world_.setup().h;
  const int64_t heads = int64_t{world_.setup().b} * world_.setup().hq();
  Retrieved got;
  Hits& read = got.hits;
  read.positions =
      session.read_rows("positions", hits.positions, options_.k, whole(rows, options_.k));
  read.scores = session.read_rows("scores", hits.scores, options_.k, whole(rows, options_.k));
  read.counts = session.read(hits.counts, rows);
  got.candidates = session.read_rows("candidates", hits.candidates, stride_, whole(rows, stride_));
  const std::vector<int32_t> counts = session.read(hits.candidate_counts, rows);
  for (size_t r = 0; r < counts.size(); ++r) {
    if (counts[r] < 0 || counts[r] > stride_) {
      throw Failure(fmt::format("candidate_counts[{}]={}, of {} at most", r, counts[r], stride_));
    }
    got.candidates[r].resize(static_cast<size_t>(counts[r]));
  }
  if (options_.tail == PKV_TAIL_DROP) return got;
  read.estimates = session.read_rows("estimates", hits.estimates, stride_,
                                     candidate_counts(got.candidates, world_.setup().G));
  read.rest_lse = session.read(hits.rest_lse, heads);
  if (reads_samples(options_.tail)) {
    const int64_t samples = options_.tail_samples;
    read.sample_estimates = session.read_rows("sample_estimates", hits.sample_estimates, samples,
                                              whole(heads, samples));
  }
  return got;
}

Retrieved Step::retrieve(uint8_t fill) const {
  Session session(place_, fill);
  const Tensor queries = world_.query_tensor();
  const pkv_tensor query = session.in("query", queries);
  const pkv_hits hits = hits_out(session);
  session.finish("pkv_retrieve", passed(pkv_retrieve(plan_.get(), place_.stream(), &query,
                                                     scratch(session), &hits)));
  return read_hits(session, hits);
}

Fetched Step::fetch(uint8_t fill, const FetchInput& input) const {
  Session session(place_, fill);
  pkv_rows source = {};
  pkv_rows target = {};
  pkv_hits hits = {};
  require("pkv_rows_init", pkv_rows_init(&source, sizeof source));
  require("pkv_rows_init", pkv_rows_init(&target, sizeof target));
  require("pkv_hits_init", pkv_hits_init(&hits, sizeof hits));
  const auto out = [&](const Tensor& from) {
    return empty_tensor(from.dtype, {input.batch.size(), input.heads, input.k, from.shape[3]},
                        input.target_layout, fill);
  };
  hits.positions = const_cast<int32_t*>(session.in("positions", input.positions));
  const Tensor keys = out(*input.keys);
  source.keys = session.in("source_keys", *input.keys);
  target.keys = session.out("keys", keys);
  Tensor values;
  if (input.values) {
    values = out(*input.values);
    source.values = session.in("source_values", *input.values);
    target.values = session.out("values", values);
  }
  session.finish("pkv_fetch",
                 passed(pkv_fetch(plan_.get(), place_.stream(), &source, &hits, &target)));
  Fetched fetched;
  fetched.keys = session.read("keys", target.keys, keys);
  if (input.values) fetched.values = session.read("values", target.values, values);
  return fetched;
}

Attention Step::attend(uint8_t fill, const AttendInput& input) const {
  Session session(place_, fill);
  pkv_attention attention = {};
  pkv_hits hits = {};
  require("pkv_attention_init", pkv_attention_init(&attention, sizeof attention));
  require("pkv_hits_init", pkv_hits_init(&hits, sizeof hits));
  hits.positions =
      const_cast<int32_t*>(session.in("positions", padded(input.positions, input.k, -1)));
  hits.counts = const_cast<int32_t*>(session.in("counts", input.counts));
  if (input.tail != PKV_TAIL_DROP) {
    std::vector<int32_t> counts;
    for (const auto& row : input.candidates) counts.push_back(static_cast<int32_t>(row.size()));
    hits.candidates =
        const_cast<int32_t*>(session.in("candidates", padded(input.candidates, stride_, -1)));
    hits.candidate_counts = const_cast<int32_t*>(session.in("candidate_counts", counts));
    hits.estimates =
        const_cast<float*>(session.in("estimates", padded(input.estimates, stride_, 0.0F)));
    hits.rest_lse = const_cast<float*>(session.in("rest_lse", input.rest_lse));
  }
  if (reads_samples(input.tail)) {
    hits.sample_estimates = const_cast<float*>(session.in(
        "sample_estimates", padded(input.sample_estimates, options_.tail_samples, 0.0F)));
  }
  attention.dense_count = static_cast<int32_t>(input.parts.size());
  attention.query = session.in("query", input.queries);
  for (size_t p = 0; p < input.parts.size(); ++p) {
    attention.dense[p] = dense_part(session, input.parts[p]);
  }
  if (input.k > 0) {
    attention.rows.keys = session.in("row_keys", input.rows->keys);
    if (input.rows->values) attention.rows.values = session.in("row_values", *input.rows->values);
  }
  attention.hits = &hits;
  attention.scratch = scratch(session);
  const AttentionOut out(session, fill, input, world_.codec().dv());
  attention.output = out.output;
  attention.lse = out.lse;
  attention.sink_logits = session.in("sink_logits", input.sink_logits);
  session.finish("pkv_attend", passed(pkv_attend(plan_.get(), place_.stream(), &attention)));
  return out.read(session);
}

Whole Step::run(uint8_t fill, const FetchInput& source, const AttendInput& input, bool wants_hits,
                int32_t source_kind) const {
  Session session(place_, fill);
  pkv_step step = {};
  require("pkv_step_init", pkv_step_init(&step, sizeof step));
  step.query = session.in("query", input.queries);
  step.dense_count = static_cast<int32_t>(input.parts.size());
  for (size_t p = 0; p < input.parts.size(); ++p) {
    step.dense[p] = dense_part(session, input.parts[p]);
  }
  if (input.k > 0) {
    const auto put = [&](const char* name, const Tensor& rows) {
      return source_kind == PKV_ALLOC_HOST ? session.in_host(name, rows) : session.in(name, rows);
    };
    step.source.keys = put("source_keys", *source.keys);
    if (source.values) step.source.values = put("source_values", *source.values);
  }
  const pkv_hits hits = wants_hits ? hits_out(session) : pkv_hits{};
  if (wants_hits) step.hits = &hits;
  step.scratch = scratch(session);
  const AttentionOut out(session, fill, input, world_.codec().dv());
  step.output = out.output;
  step.lse = out.lse;
  step.sink_logits = session.in("sink_logits", input.sink_logits);
  step.row_cache = row_cache_.get();
  session.finish("pkv_step_run", passed(pkv_step_run(plan_.get(), place_.stream(), &step)));
  return {wants_hits ? read_hits(session, hits) : Retrieved(), out.read(session)};
}

}  // namespace pkv::conformance
