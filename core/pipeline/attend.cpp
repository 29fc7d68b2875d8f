// attend as a single stage. docs/algorithm.md, 8. Not here: the attention of a plan (step.cpp).
#include <array>
#include <cstddef>
#include <limits>
#include <span>
#include <string_view>
#include <vector>

#include "core/base/status.h"
#include "core/base/text.h"
#include "core/format/records.h"
#include "core/pipeline/attend_checks.h"
#include "core/pipeline/page_checks.h"
#include "core/pipeline/run_stage.h"
#include "core/pipeline/stages.h"

namespace pkv {
namespace {

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
  PKV_RETURN_IF_ERROR(check_soft_cap(a.soft_cap));
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
  return check_store_spans(stream, *a.codec.geometry, a.store,
                           {batch.sequences, {}, batch.lengths});
}

absl::Status check_sinks(const Stream& stream, const pkv_attend_args& a) {
  if (a.sink_logits == nullptr) return absl::OkStatus();
  PKV_ASSIGN_OR_RETURN(const auto sinks, read_back(stream, a.sink_logits, a.query_heads));
  for (std::size_t head = 0; head < sinks.size(); ++head) {
    if (sinks[head] < std::numeric_limits<float>::infinity()) continue;
    return absl::InvalidArgumentError(
        str_cat("sink_logits[", head, "]=", sinks[head], ", accepted: finite, or -inf for none"));
  }
  return absl::OkStatus();
}

// The tokens of each entry.
absl::StatusOr<std::vector<int64_t>> check_part_lengths(const Stream& stream,
                                                        const pkv_attend_args& a, int32_t i,
                                                        const KeysValues& rows) {
  const int64_t* lengths = a.parts[i].lengths;
  if (lengths == nullptr) {
    return std::vector<int64_t>(static_cast<std::size_t>(a.batch.batch), rows.tokens());
  }
  PKV_ASSIGN_OR_RETURN(auto numbers, read_back(stream, lengths, a.batch.batch));
  for (std::size_t entry = 0; entry < numbers.size(); ++entry) {
    PKV_RETURN_IF_ERROR(
        check_part_length(i, static_cast<int64_t>(entry), numbers[entry], rows.tokens()));
  }
  return numbers;
}

// Where the tokens of a part in pages lie. Values that are a prefix of the keys lie with these.
absl::Status check_part_pages(const Stream& stream, pkv_attend_args& a, int32_t i,
                              const BatchNumbers& batch, std::span<const int64_t> lengths,
                              const KeysValues& rows) {
  pkv_part& part = a.parts[i];
  if (!is_paged(part.key_pages)) {
    PKV_RETURN_IF_ERROR(
        check_absent(str_cat(part_name(i), ".starts"), part.starts, "unless the part is in pages"));
    return absl::OkStatus();
  }
  std::vector<int64_t> starts(lengths.size());
  std::vector<int64_t> ends(lengths.begin(), lengths.end());
  if (part.starts != nullptr) {
    PKV_ASSIGN_OR_RETURN(starts, read_back(stream, part.starts, a.batch.batch));
    for (std::size_t entry = 0; entry < starts.size(); ++entry) {
      PKV_RETURN_IF_ERROR(check_index(str_cat(part_name(i), ".starts[", entry, "]"), starts[entry],
                                      0, format::kMaxTokens - lengths[entry]));
      ends[entry] += starts[entry];
    }
  }
  const Spans spans = {batch.sequences, starts, ends};
  PKV_RETURN_IF_ERROR(
      check_token_pages(stream, str_cat(part_name(i), ".keys"), part.key_pages, *rows.keys, spans));
  if (!rows.values) {
    part.value_pages = part.key_pages;
    return absl::OkStatus();
  }
  return check_token_pages(stream, str_cat(part_name(i), ".values"), part.value_pages, *rows.values,
                           spans);
}

absl::Status check_stage_part(const Stream& stream, pkv_attend_args& a, int32_t i,
                              const BatchNumbers& batch, KeysValues& rows) {
  pkv_part& part = a.parts[i];
  if (is_present(part.values) && is_paged(part.key_pages) != is_paged(part.value_pages)) {
    return absl::InvalidArgumentError(
        str_cat(part_name(i), ": one of keys and values is in pages, accepted: both or none"));
  }
  PKV_RETURN_IF_ERROR(
      check_keys_values(*stream.device(), part_name(i), part.keys, part.values,
                        exactly("b", a.batch.batch), *a.codec.geometry, at_least("t", 0), rows,
                        is_paged(part.key_pages) ? Access::kElsewhere : Access::kInput));
  PKV_ASSIGN_OR_RETURN(const auto lengths, check_part_lengths(stream, a, i, rows));
  PKV_RETURN_IF_ERROR(check_part_pages(stream, a, i, batch, lengths, rows));
  part.keys = rows.keys->tensor();
  part.values = rows.values_tensor(a.codec.geometry->value_dim);
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
    KeysValues& rows = parts[static_cast<std::size_t>(i)];
    PKV_RETURN_IF_ERROR(check_stage_part(stream, args, i, batch, rows));
    PKV_RETURN_IF_ERROR(check_output_apart(tensors.output, part_name(i), rows));
  }
  PKV_RETURN_IF_ERROR(check_attend_hits(args));
  KeysValues fetched;
  if (args.k > 0) {
    PKV_RETURN_IF_ERROR(check_keys_values(device, "rows", args.row_keys, args.row_values,
                                          exactly("b", b), g, exactly("k", args.k), fetched));
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
  PKV_RETURN_IF_ERROR(check_codec_sets(stream, args.codec, b));
  PKV_RETURN_IF_ERROR(check_sinks(stream, args));
  if (b == 0) return absl::OkStatus();
  return run_stage_sync(stream, "attend", device.backend().attend, args);
}

}  // namespace pkv
