#include "tests/conformance/step_stage.h"

#include <algorithm>

#include "fmt/core.h"
#include "tests/conformance/failure.h"

namespace pkv::conformance {
namespace {

// Calls that make objects refuse with UNIMPLEMENTED what the backend lacks.
void require_or_skip(const char* function, pkv_status status) {
  if (status == PKV_UNIMPLEMENTED) throw Skip(error_text(function, status));
  require(function, status);
}

const char* tail_name(const World& world, int32_t tail) {
  switch (tail) {
    case PKV_TAIL_DROP: return "drop";
    case PKV_TAIL_MEAN: return "mean";
    case PKV_TAIL_SAMPLED: return "sampled";
    default: return world.setup().sketch_bits == 2 ? "sketch2" : "sketch4";
  }
}

// Tokens [begin, end) of one sequence, [h, t, width].
Tensor sequence_tokens(const Dense& all, int32_t sequence, int64_t begin, int64_t end,
                       Layout layout) {
  Dense tokens = slice_tokens(take(all, {sequence}), begin, end);
  tokens.shape.erase(tokens.shape.begin());
  return lay_out(tokens, layout);
}

template <class T>
std::vector<T> padded(const Rows<T>& rows, int64_t stride, T rest) {
  std::vector<T> flat;
  for (std::vector<T> row : rows) {
    row.resize(static_cast<size_t>(stride), rest);
    flat.insert(flat.end(), row.begin(), row.end());
  }
  return flat;
}

}  // namespace

Step::Step(const Place& place, const World& world, const StepOptions& options, float scale)
    : place_(place), world_(world), options_(options) {
  configure(world, options, scale);
  import_codec(world);
  pkv_index* index = nullptr;
  require_or_skip("pkv_index_create",
                  pkv_index_create(place.device(), codec_.get(), world.sequences(),
                                   world.setup().n + 3, &index));
  index_.reset(index);
  append(world);
  make_plan(world);
}

void Step::configure(const World& world, const StepOptions& options, float scale) {
  pkv_config* config = nullptr;
  require("pkv_config_create", pkv_config_create(options.profile, &config));
  config_.reset(config);
  const Setup& s = world.setup();
  const pkv_geometry& g = world.codec().geometry;
  std::vector<std::pair<std::string, std::string>> set = {
      {"head_dim", fmt::format("{}", g.head_dim)},
      {"v_source", s.v_source == PKV_V_SOURCE_K_PREFIX ? "k_prefix" : "own"},
      {"value_dim", fmt::format("{}", g.value_dim)},
      {"codec", codec_name(g.codec)},
      {"vote", vote_name(g.vote)},
      {"center", "on"},
      {"balance", "on"},
      {"rounds", fmt::format("{}", g.rounds)},
      {"seed", fmt::format("{}", g.seed)},
      {"value_norm", g.value_norm != 0 ? "on" : "off"},
      {"tail", tail_name(world, options.tail)},
      {"k", fmt::format("{}", options.k)},
      {"scale", fmt::format("{:.9g}", scale)},
      {"nonfinite", "isolate"}};
  if (options.tail != PKV_TAIL_DROP) {
    set.emplace_back("tail_samples", fmt::format("{}", options.tail_samples));
  }
  set.insert(set.end(), options.set.begin(), options.set.end());
  for (const auto& [name, value] : set) {
    require("pkv_config_set", pkv_config_set(config, name.c_str(), value.c_str()));
  }
}

void Step::import_codec(const World& world) {
  const Codec& source = world.codec();
  pkv_codec_data data = {};
  require("pkv_codec_data_init", pkv_codec_data_init(&data, sizeof data));
  data.kv_heads = source.heads();
  data.center = source.center.data();
  data.balance = source.balance.data();
  data.value_center = source.value_center.empty() ? nullptr : source.value_center.data();
  pkv_codec* codec = nullptr;
  require_or_skip("pkv_codec_import",
                  pkv_codec_import(place_.device(), config_.get(), &data, &codec));
  codec_.reset(codec);
}

void Step::append(const World& world) const {
  for (size_t i = 0; i < world.batch().sequences.size(); ++i) {
    const int32_t sequence = world.batch().sequences[i];
    const int64_t n = world.batch().lengths[i];
    for (const auto& [begin, end] : {std::pair(int64_t{0}, n / 3), std::pair(n / 3, n)}) {
      if (begin == end) continue;
      Session session(place_, kFills[0]);
      const Tensor keys = sequence_tokens(world.keys(), sequence, begin, end, world.setup().layout);
      const Tensor values =
          sequence_tokens(*world.values(), sequence, begin, end, world.setup().layout);
      const pkv_tensor key_view = session.in("keys", keys);
      const pkv_tensor value_view = session.in("values", values);
      session.finish(
          "pkv_index_append_sync",
          pkv_index_append_sync(index_.get(), place_.stream(), sequence, &key_view, &value_view));
    }
  }
}

void Step::make_plan(const World& world) {
  pkv_plan_desc desc = {};
  require("pkv_plan_desc_init", pkv_plan_desc_init(&desc, sizeof desc));
  desc.batch = world.setup().b;
  desc.query_heads = world.setup().hq();
  desc.sequences = world.batch().sequences.data();
  pkv_plan* plan = nullptr;
  require_or_skip("pkv_plan_create", pkv_plan_create(index_.get(), config_.get(), &desc, &plan));
  plan_.reset(plan);
  require("pkv_plan_candidates", pkv_plan_candidates(plan, &stride_));
}

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

std::vector<Records> Step::records() const {
  const pkv_geometry& geometry = world_.codec().geometry;
  std::vector<Records> rows;
  for (int32_t sequence = 0; sequence < world_.sequences(); ++sequence) {
    int64_t n = 0;
    require("pkv_index_length", pkv_index_length(index_.get(), sequence, &n));
    for (int32_t head = 0; head < world_.setup().h; ++head) {
      Records row = blank_records(geometry, 0, n, 0);
      const auto bytes = [&](int p) {
        return row.planes[p].empty() ? nullptr : row.planes[p].data();
      };
      const auto numbers = [&](int p) { return reinterpret_cast<uint16_t*>(bytes(p)); };
      pkv_records planes = {};
      planes.struct_size = sizeof planes;
      planes.signs = bytes(0);
      planes.vote_factors = numbers(1);
      planes.codes = bytes(2);
      planes.factors = numbers(3);
      planes.value_signs = bytes(4);
      planes.value_codes = bytes(5);
      planes.value_factors = numbers(6);
      planes.value_norms = numbers(7);
      require("pkv_index_export_sync",
              pkv_index_export_sync(index_.get(), place_.stream(), sequence, head, 0, n, &planes));
      rows.push_back(std::move(row));
    }
  }
  return rows;
}

Hits Step::retrieve(uint8_t fill, const World& world, Rows<int32_t>& candidates) const {
  const int64_t rows = int64_t{world.setup().b} * world.setup().h;
  const int64_t heads = int64_t{world.setup().b} * world.setup().hq();
  const bool has_tail = options_.tail != PKV_TAIL_DROP;
  Session session(place_, fill);
  pkv_hits hits = {};
  require("pkv_hits_init", pkv_hits_init(&hits, sizeof hits));
  const Tensor queries = world.query_tensor();
  const pkv_tensor query = session.in("query", queries);
  hits.positions = session.out<int32_t>("positions", rows * options_.k);
  hits.scores = session.out<float>("scores", rows * options_.k);
  hits.counts = session.out<int32_t>("counts", rows);
  hits.candidates = session.out<int32_t>("candidates", rows * stride_);
  hits.candidate_counts = session.out<int32_t>("candidate_counts", rows);
  if (has_tail) {
    hits.estimates = session.out<float>("estimates", heads * stride_);
    hits.rest_lse = session.out<float>("rest_lse", heads);
  }
  const int64_t samples = options_.tail_samples;
  if (reads_samples(options_.tail)) {
    hits.sample_estimates = session.out<float>("sample_estimates", heads * samples);
  }
  session.finish("pkv_retrieve", passed(pkv_retrieve(plan_.get(), place_.stream(), &query,
                                                     scratch(session), &hits)));
  Hits got;
  got.positions =
      session.read_rows("positions", hits.positions, options_.k, whole(rows, options_.k));
  got.scores = session.read_rows("scores", hits.scores, options_.k, whole(rows, options_.k));
  got.counts = session.read(hits.counts, rows);
  candidates = session.read_rows("candidates", hits.candidates, stride_, whole(rows, stride_));
  const std::vector<int32_t> counts = session.read(hits.candidate_counts, rows);
  for (size_t r = 0; r < counts.size(); ++r) {
    if (counts[r] < 0 || counts[r] > stride_) {
      throw Failure(fmt::format("candidate_counts[{}]={}, of {} at most", r, counts[r], stride_));
    }
    candidates[r].resize(static_cast<size_t>(counts[r]));
  }
  if (!has_tail) return got;
  got.estimates = session.read_rows("estimates", hits.estimates, stride_,
                                    candidate_counts(candidates, world.setup().G));
  got.rest_lse = session.read(hits.rest_lse, heads);
  if (reads_samples(options_.tail)) {
    got.sample_estimates = session.read_rows("sample_estimates", hits.sample_estimates, samples,
                                             whole(heads, samples));
  }
  return got;
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
  if (input.k > 0) {
    attention.rows.keys = session.in("row_keys", input.rows->keys);
    if (input.rows->values) attention.rows.values = session.in("row_values", *input.rows->values);
  }
  attention.hits = &hits;
  const Tensor output = put_attention(session, fill, input, attention);
  session.finish("pkv_attend", passed(pkv_attend(plan_.get(), place_.stream(), &attention)));
  const int64_t heads = input.batch.size() * input.query_heads;
  return {session.read("output", attention.output, output), session.read(attention.lse, heads)};
}

Attention Step::run(uint8_t fill, const AttendInput& input) const {
  Session session(place_, fill);
  pkv_step step = {};
  require("pkv_step_init", pkv_step_init(&step, sizeof step));
  const Tensor keys = lay_out(world_.keys(), world_.setup().layout);
  const Tensor values = lay_out(*world_.values(), world_.setup().layout);
  if (options_.k > 0) {
    step.source.keys = session.in("source_keys", keys);
    if (world_.setup().v_source == PKV_V_SOURCE_OWN) {
      step.source.values = session.in("source_values", values);
    }
  }
  const Tensor output = put_attention(session, fill, input, step);
  session.finish("pkv_step_run", passed(pkv_step_run(plan_.get(), place_.stream(), &step)));
  const int64_t heads = input.batch.size() * input.query_heads;
  return {session.read("output", step.output, output), session.read(step.lse, heads)};
}

template <class Call>
Tensor Step::put_attention(Session& session, uint8_t fill, const AttendInput& input,
                           Call& call) const {
  call.dense_count = static_cast<int32_t>(input.parts.size());
  call.query = session.in("query", input.queries);
  for (size_t p = 0; p < input.parts.size(); ++p) {
    const PartInput& part = input.parts[p];
    call.dense[p].rows.keys = session.in("dense_keys", part.keys);
    if (part.values) call.dense[p].rows.values = session.in("dense_values", *part.values);
    call.dense[p].lengths = part.lengths ? part.lengths->data() : nullptr;
  }
  call.scratch = scratch(session);
  const Shape shape = {input.batch.size(), input.query_heads, world_.codec().dv()};
  Tensor output = empty_tensor(input.output_dtype, shape, input.output_layout, fill);
  call.output = session.out("output", output);
  call.lse = session.out<float>("lse", input.batch.size() * input.query_heads);
  call.sink_logits = session.in("sink_logits", input.sink_logits);
  return output;
}

}  // namespace pkv::conformance
