// attend: exact softmax over dense parts and fetched rows, and the tail. docs/algorithm.md, 8.
#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "core/base/checked.h"
#include "core/base/status.h"
#include "core/base/text.h"
#include "core/codec/codec.h"
#include "core/format/records.h"
#include "core/pipeline/checks.h"
#include "core/pipeline/run_stage.h"
#include "core/pipeline/stages.h"
#include "core/pipeline/step.h"

namespace pkv {
namespace {

// K and V of one part or of the fetched rows. Stays where it is: tensors point into it.
struct KeysValues {
  std::optional<TensorView> keys;    // [b, h, t, d]
  std::optional<TensorView> values;  // [b, h, t, dv]; none: the first dv coordinates of the keys
  int64_t prefix_shape[4] = {};

  int64_t tokens() const { return keys->extent(2); }
  pkv_tensor values_tensor(int32_t value_dim) {
    if (values) return values->tensor();
    return prefix_view(keys->tensor(), value_dim, prefix_shape);
  }
};

absl::Status check_keys_values(const Device& device, const std::string& name,
                               const pkv_tensor& keys, const pkv_tensor& values, int32_t batch,
                               const pkv_geometry& g, const Axis& tokens, KeysValues& out) {
  PKV_ASSIGN_OR_RETURN(out.keys, check_tensor(device, str_cat(name, ".keys"), keys,
                                              {exactly("b", batch), exactly("h", g.kv_heads),
                                               tokens, exactly("d", g.head_dim)},
                                              kFloatTypes));
  if (!is_present(values) && g.v_source == PKV_V_SOURCE_K_PREFIX) return absl::OkStatus();
  PKV_ASSIGN_OR_RETURN(out.values,
                       check_tensor(device, str_cat(name, ".values"), values,
                                    {exactly("b", batch), exactly("h", g.kv_heads),
                                     exactly("t", out.tokens()), exactly("dv", g.value_dim)},
                                    kFloatTypes));
  return absl::OkStatus();
}

// Query and output, which do not overlap.
struct QueryOutput {
  TensorView query;   // [b, hq, d]
  TensorView output;  // [b, hq, dv]
};

absl::StatusOr<QueryOutput> check_query_output(const Device& device, const pkv_tensor& query,
                                               const pkv_tensor& output, int32_t batch,
                                               int32_t query_heads, const pkv_geometry& g) {
  PKV_ASSIGN_OR_RETURN(TensorView in, check_tensor(device, "query", query,
                                                   {exactly("b", batch), exactly("hq", query_heads),
                                                    exactly("d", g.head_dim)},
                                                   kFloatTypes));
  PKV_ASSIGN_OR_RETURN(
      TensorView out,
      check_tensor(device, "output", output,
                   {exactly("b", batch), exactly("hq", query_heads), exactly("dv", g.value_dim)},
                   kFloatTypes, Access::kOutput));
  PKV_RETURN_IF_ERROR(check_apart("output", out, "query", in));
  return QueryOutput{in, out};
}

absl::Status check_output_apart(const TensorView& output, const std::string& name,
                                const KeysValues& rows) {
  PKV_RETURN_IF_ERROR(check_apart("output", output, str_cat(name, ".keys"), *rows.keys));
  if (!rows.values) return absl::OkStatus();
  return check_apart("output", output, str_cat(name, ".values"), *rows.values);
}

std::string part_name(int64_t part) { return str_cat("dense[", part, "]"); }

absl::Status check_part_length(int64_t part, int64_t entry, int64_t length, int64_t tokens) {
  if (length >= 0 && length <= tokens) return absl::OkStatus();
  return absl::InvalidArgumentError(
      str_cat(part_name(part), ".lengths[", entry, "]=", length, ", accepted: 0..", tokens));
}

absl::Status check_has_values(const pkv_geometry& g) {
  if (g.v_source != PKV_V_SOURCE_NONE) return absl::OkStatus();
  return absl::InvalidArgumentError("v_source=none has no values to attend to, accepted: retrieve");
}

// Whether the tail looks at sketched values.
bool reads_samples(const pkv_attend_args& a) {
  return a.tail == PKV_TAIL_SKETCH || a.tail == PKV_TAIL_SAMPLED;
}

// Of the hits, what the tail and the rows need.
absl::Status check_hits(const pkv_attend_args& a) {
  const int64_t rows = int64_t{a.batch.batch} * a.codec.geometry->kv_heads;
  const int64_t heads = int64_t{a.batch.batch} * a.query_heads;
  PKV_RETURN_IF_ERROR(check_pointer("positions", a.positions, rows * a.k));
  PKV_RETURN_IF_ERROR(check_pointer("counts", a.counts, a.k == 0 ? 0 : rows));
  if (a.tail == PKV_TAIL_DROP) return absl::OkStatus();
  PKV_ASSIGN_OR_RETURN(
      const int64_t candidates,
      checked_product("candidates", {{"rows", rows}, {"candidates", a.candidates_stride}}));
  PKV_ASSIGN_OR_RETURN(
      const int64_t estimates,
      checked_product("estimates", {{"heads", heads}, {"candidates", a.candidates_stride}}));
  PKV_RETURN_IF_ERROR(check_pointer("candidates", a.candidates, candidates));
  PKV_RETURN_IF_ERROR(check_pointer("candidate_counts", a.candidate_counts, rows));
  PKV_RETURN_IF_ERROR(check_pointer("estimates", a.estimates, estimates));
  PKV_RETURN_IF_ERROR(check_pointer("rest_lse", a.rest_lse, heads));
  if (!reads_samples(a)) return absl::OkStatus();
  return check_pointer("sample_estimates", a.sample_estimates, heads);
}

// ---- The single stage -------------------------------------------------------------------------

absl::Status check_stage_options(const pkv_attend_args& a) {
  const pkv_geometry& g = *a.codec.geometry;
  PKV_RETURN_IF_ERROR(check_range("tail", a.tail, PKV_TAIL_DROP, PKV_TAIL_SAMPLED));
  if (reads_samples(a)) {
    const int32_t stride_max = a.tail == PKV_TAIL_SKETCH ? 1 : format::kMaxSketchStride;
    PKV_RETURN_IF_ERROR(
        check_range(str_cat("sketch_stride with tail=", a.tail), g.sketch_stride, 1, stride_max));
    PKV_RETURN_IF_ERROR(check_range("tail_samples", a.tail_samples, 1, format::kMaxTailSamples));
  }
  PKV_RETURN_IF_ERROR(check_range("part_count", a.part_count, 0, PKV_MAX_PARTS));
  PKV_RETURN_IF_ERROR(check_range("k", a.k, 0, format::kMaxK));
  PKV_RETURN_IF_ERROR(check_range("candidates_stride", a.candidates_stride, 0, format::kMaxTokens));
  return check_scale(a.scale);
}

absl::Status check_counts(const Stream& stream, std::string_view name, const int32_t* counts,
                          int64_t rows, int64_t max) {
  PKV_ASSIGN_OR_RETURN(const auto numbers, read_back(stream, counts, rows));
  for (std::size_t row = 0; row < numbers.size(); ++row) {
    PKV_RETURN_IF_ERROR(check_index(str_cat(name, "[", row, "]"), numbers[row], 0, max));
  }
  return absl::OkStatus();
}

// Each candidate lies within its row; sketches are read there.
absl::Status check_candidates(const Stream& stream, const pkv_attend_args& a,
                              const BatchNumbers& batch) {
  const int32_t kv_heads = a.codec.geometry->kv_heads;
  const int64_t rows = int64_t{a.batch.batch} * kv_heads;
  PKV_RETURN_IF_ERROR(
      check_counts(stream, "candidate_counts", a.candidate_counts, rows, a.candidates_stride));
  PKV_ASSIGN_OR_RETURN(const auto counts, read_back(stream, a.candidate_counts, rows));
  for (int64_t row = 0; row < rows; ++row) {
    PKV_ASSIGN_OR_RETURN(const auto candidates,
                         read_back(stream, a.candidates + row * a.candidates_stride,
                                   int64_t{counts[static_cast<std::size_t>(row)]}));
    const int64_t length = batch.lengths[static_cast<std::size_t>(row / kv_heads)];
    for (std::size_t i = 0; i < candidates.size(); ++i) {
      PKV_RETURN_IF_ERROR(
          check_index(str_cat("candidates[", row, ", ", i, "]"), candidates[i], 0, length - 1));
    }
  }
  return absl::OkStatus();
}

absl::Status check_stage_tail(const Stream& stream, const pkv_attend_args& a,
                              const BatchNumbers& batch) {
  if (a.tail == PKV_TAIL_DROP || a.batch.batch == 0) return absl::OkStatus();
  PKV_RETURN_IF_ERROR(check_candidates(stream, a, batch));
  PKV_RETURN_IF_ERROR(check_pointer("value_sums", a.value_sums, a.batch.batch));
  PKV_RETURN_IF_ERROR(check_pointer("good_counts", a.good_counts, a.batch.batch));
  if (!reads_samples(a)) return absl::OkStatus();
  PKV_RETURN_IF_ERROR(check_store(*stream.device(), *a.codec.geometry, a.store));
  PKV_RETURN_IF_ERROR(check_lengths(batch.lengths, a.store.capacity));
  PKV_ASSIGN_OR_RETURN(const int64_t rows, rows_of(batch.sequences, a.codec.geometry->kv_heads));
  return check_store_rows(a.store, rows);
}

absl::Status check_stage_part(const Stream& stream, const pkv_attend_args& a, int32_t i,
                              const KeysValues& rows) {
  const int64_t* lengths = a.parts[i].lengths;
  if (lengths == nullptr) return absl::OkStatus();
  PKV_ASSIGN_OR_RETURN(const auto numbers, read_back(stream, lengths, a.batch.batch));
  for (std::size_t entry = 0; entry < numbers.size(); ++entry) {
    PKV_RETURN_IF_ERROR(
        check_part_length(i, static_cast<int64_t>(entry), numbers[entry], rows.tokens()));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status stage_attend_sync(const Stream& stream, pkv_attend_args args) {
  const Device& device = *stream.device();
  PKV_RETURN_IF_ERROR(check_codec(args.codec));
  const pkv_geometry& g = *args.codec.geometry;
  PKV_RETURN_IF_ERROR(check_has_values(g));
  PKV_RETURN_IF_ERROR(check_query_heads(args.query_heads, g.kv_heads));
  PKV_RETURN_IF_ERROR(check_stage_options(args));
  PKV_ASSIGN_OR_RETURN(const BatchNumbers batch,
                       check_batch(stream, args.batch, g.kv_heads, Sequences::kRead));
  const int32_t b = args.batch.batch;
  PKV_ASSIGN_OR_RETURN(
      const QueryOutput tensors,
      check_query_output(device, args.queries, args.output, b, args.query_heads, g));
  args.queries = tensors.query.tensor();
  args.output = tensors.output.tensor();
  std::array<KeysValues, PKV_MAX_PARTS> parts;
  for (int32_t i = 0; i < args.part_count; ++i) {
    pkv_part& part = args.parts[i];
    KeysValues& rows = parts[static_cast<std::size_t>(i)];
    PKV_RETURN_IF_ERROR(check_keys_values(device, part_name(i), part.keys, part.values, b, g,
                                          at_least("t", 0), rows));
    PKV_RETURN_IF_ERROR(check_stage_part(stream, args, i, rows));
    PKV_RETURN_IF_ERROR(check_output_apart(tensors.output, part_name(i), rows));
    part.keys = rows.keys->tensor();
    part.values = rows.values_tensor(g.value_dim);
  }
  PKV_RETURN_IF_ERROR(check_hits(args));
  KeysValues fetched;
  if (args.k > 0) {
    PKV_RETURN_IF_ERROR(check_keys_values(device, "rows", args.row_keys, args.row_values, b, g,
                                          exactly("k", args.k), fetched));
    PKV_RETURN_IF_ERROR(check_output_apart(tensors.output, "rows", fetched));
    PKV_RETURN_IF_ERROR(
        check_counts(stream, "counts", args.counts, int64_t{b} * g.kv_heads, args.k));
    args.row_keys = fetched.keys->tensor();
    args.row_values = fetched.values_tensor(g.value_dim);
  } else {
    args.row_keys.ndim = 0;
    args.row_values.ndim = 0;
  }
  PKV_RETURN_IF_ERROR(check_stage_tail(stream, args, batch));
  if (b == 0) return absl::OkStatus();
  return run_stage_sync(stream, "attend", device.backend().attend, args);
}

// ---- The step -----------------------------------------------------------------------------------

namespace {

// The pseudo-token of the tail is the mean over all values of the zone.
absl::Status check_tail_values(const Plan& plan) {
  for (const int32_t sequence : plan.sequences()) {
    if (plan.index().length(sequence) == 0 || plan.index().has_values(sequence)) continue;
    return absl::FailedPreconditionError(
        str_cat("tail: sequence ", sequence,
                " has tokens that were appended without values, accepted: values for all, or "
                "tail=drop"));
  }
  return absl::OkStatus();
}

// What hits bring, or nothing of the zone.
absl::Status set_hits(const Plan& plan, const pkv_hits* hits, pkv_attend_args& args) {
  if (hits == nullptr) {
    args.k = 0;
    args.tail = PKV_TAIL_DROP;
    return absl::OkStatus();
  }
  PKV_RETURN_IF_ERROR(check_range("hits.flags", hits->flags, 0, 0));
  args.positions = hits->positions;
  args.counts = hits->counts;
  args.candidates = hits->candidates;
  args.candidate_counts = hits->candidate_counts;
  args.estimates = hits->estimates;
  args.rest_lse = hits->rest_lse;
  args.sample_estimates = hits->sample_estimates;
  if (args.tail != PKV_TAIL_DROP) PKV_RETURN_IF_ERROR(check_tail_values(plan));
  return check_hits(args);
}

absl::Status check_dense_lengths(const Plan& plan, const pkv_dense& dense, int32_t part,
                                 int64_t tokens) {
  if (dense.lengths == nullptr) return absl::OkStatus();
  for (int64_t i = 0; i < plan.batch(); ++i) {
    PKV_RETURN_IF_ERROR(check_part_length(part, i, dense.lengths[i], tokens));
  }
  return absl::OkStatus();
}

// Lengths of dense parts are the caller's host memory; the backend reads them from scratch.
absl::Status copy_part_lengths(const Plan& plan, const Stream& stream, void* scratch,
                               pkv_attend_args& args) {
  auto* room = plan.attend_scratch().get<int64_t>(scratch, Piece::kPartLengths);
  for (int32_t i = 0; i < args.part_count; ++i) {
    const int64_t*& lengths = args.parts[i].lengths;
    if (lengths == nullptr) continue;
    int64_t* target = room + int64_t{i} * plan.batch();
    PKV_RETURN_IF_ERROR(stream.copy(target, lengths, plan.batch() * int64_t{sizeof(int64_t)}));
    lengths = target;
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status attend(const Plan& plan, const Stream& stream, const pkv_attention& attention,
                    const pkv_hits* hits) {
  const Device& device = plan.device();
  const pkv_attend_slots& slots = device.backend().attend;
  const pkv_geometry& g = plan.geometry();
  PKV_RETURN_IF_ERROR(plan.check_stream(stream));
  PKV_RETURN_IF_ERROR(check_has_values(g));
  PKV_RETURN_IF_ERROR(check_range("dense_count", attention.dense_count, 0, PKV_ATTENTION_PARTS));
  PKV_ASSIGN_OR_RETURN(const QueryOutput tensors,
                       check_query_output(device, attention.query, attention.output, plan.batch(),
                                          plan.query_heads(), g));
  pkv_attend_args args = plan.attend_args();
  args.queries = tensors.query.tensor();
  args.output = tensors.output.tensor();
  args.lse = attention.lse;

  std::array<KeysValues, PKV_MAX_PARTS> parts;
  for (int32_t i = 0; i < attention.dense_count; ++i) {
    const pkv_dense& dense = attention.dense[i];
    KeysValues& rows = parts[static_cast<std::size_t>(i)];
    PKV_RETURN_IF_ERROR(check_keys_values(device, part_name(i), dense.rows.keys, dense.rows.values,
                                          plan.batch(), g, at_least("t", 0), rows));
    PKV_RETURN_IF_ERROR(check_dense_lengths(plan, dense, i, rows.tokens()));
    PKV_RETURN_IF_ERROR(check_output_apart(tensors.output, part_name(i), rows));
    if (rows.tokens() == 0) continue;
    pkv_part& part = args.parts[args.part_count++];
    part.keys = rows.keys->tensor();
    part.values = rows.values_tensor(g.value_dim);
    part.lengths = dense.lengths;
  }
  PKV_RETURN_IF_ERROR(set_hits(plan, hits, args));
  KeysValues fetched;
  if (args.k > 0) {
    PKV_RETURN_IF_ERROR(check_keys_values(device, "rows", attention.rows.keys,
                                          attention.rows.values, plan.batch(), g,
                                          exactly("k", args.k), fetched));
    PKV_RETURN_IF_ERROR(check_output_apart(tensors.output, "rows", fetched));
    args.row_keys = fetched.keys->tensor();
    args.row_values = fetched.values_tensor(g.value_dim);
  } else if (hits == nullptr && is_present(attention.rows.keys)) {
    return absl::InvalidArgumentError("rows.keys are given, accepted: none without hits");
  }
  PKV_ASSIGN_OR_RETURN(void* memory, plan.scratch(attention.scratch));
  PKV_ASSIGN_OR_RETURN(const Plan::Busy busy, Plan::Busy::enter(plan));
  if (plan.batch() == 0) return absl::OkStatus();

  const ScratchLedger& ledger = plan.attend_scratch();
  PKV_ASSIGN_OR_RETURN(const int64_t needed, stage_scratch_bytes(device, "attend", slots, args));
  if (needed > ledger.bytes(Piece::kStage)) {
    return absl::ResourceExhaustedError(str_cat(
        "dense parts too long: attend needs ", needed, " bytes of scratch, the plan has ",
        ledger.bytes(Piece::kStage), "; accepted: parts of max_tokens=", plan.max_tokens()));
  }
  PKV_ASSIGN_OR_RETURN(args.batch.lengths,
                       plan.lengths(stream, ledger.get<int64_t>(memory, Piece::kLengths)));
  PKV_RETURN_IF_ERROR(copy_part_lengths(plan, stream, memory, args));
  return device.call("attend", slots.run, stream.handle(), &args,
                     ledger.get<void>(memory, Piece::kStage));
}

}  // namespace pkv
