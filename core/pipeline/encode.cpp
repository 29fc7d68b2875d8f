// Stage encode: keys to key records. docs/algorithm.md, section 3.
#include <algorithm>
#include <span>
#include <vector>

#include "core/base/text.h"
#include "core/format/records.h"
#include "core/pipeline/checks.h"
#include "core/pipeline/page_checks.h"
#include "core/pipeline/run_stage.h"
#include "core/pipeline/stages.h"

namespace pkv {
namespace {

absl::Status check_different(std::vector<int32_t> sequences) {
  std::sort(sequences.begin(), sequences.end());
  const auto twice = std::adjacent_find(sequences.begin(), sequences.end());
  if (twice == sequences.end()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      str_cat("sequences: ", *twice, " occurs twice, accepted: all different"));
}

// Each entry writes counts[i] <= t records, all within the store.
absl::Status check_entries(const Stream& stream, const pkv_encode_args& a, int64_t tokens) {
  PKV_RETURN_IF_ERROR(check_pointer("sequences", a.sequences, a.batch));
  PKV_RETURN_IF_ERROR(check_pointer("starts", a.starts, a.batch));
  PKV_RETURN_IF_ERROR(check_pointer("counts", a.counts, a.batch));
  PKV_ASSIGN_OR_RETURN(const auto sequences, read_back(stream, a.sequences, a.batch));
  PKV_ASSIGN_OR_RETURN(const auto starts, read_back(stream, a.starts, a.batch));
  PKV_ASSIGN_OR_RETURN(const auto counts, read_back(stream, a.counts, a.batch));
  PKV_RETURN_IF_ERROR(check_sequences(sequences));
  PKV_RETURN_IF_ERROR(check_different(sequences));
  const int64_t capacity = a.store.pages != nullptr ? format::kMaxTokens : a.store.capacity;
  std::vector<int64_t> ends(counts.size());
  for (std::size_t i = 0; i < counts.size(); ++i) {
    PKV_RETURN_IF_ERROR(check_index(str_cat("counts[", i, "]"), counts[i], 0, tokens));
    PKV_RETURN_IF_ERROR(
        check_index(str_cat("starts[", i, "]"), starts[i], 0, capacity - counts[i]));
    ends[i] = starts[i] + counts[i];
  }
  const Spans spans = {sequences, starts, ends};
  PKV_RETURN_IF_ERROR(check_store_spans(stream, *a.codec.geometry, a.store, spans));
  PKV_RETURN_IF_ERROR(check_pages_apart(stream, a.store, spans));
  return check_codec_sets(stream, a.codec, a.batch);
}

absl::Status check_outputs(const pkv_encode_args& a) {
  const pkv_geometry& g = *a.codec.geometry;
  if (g.vote == PKV_VOTE_TIER) {
    PKV_RETURN_IF_ERROR(check_pointer("occupancy", a.occupancy, a.batch));
  } else {
    PKV_RETURN_IF_ERROR(check_absent("occupancy", a.occupancy, "with vote=graded"));
  }
  if (is_present(a.values)) {
    PKV_RETURN_IF_ERROR(check_pointer("value_sums", a.value_sums, a.batch));
  } else {
    PKV_RETURN_IF_ERROR(check_absent("value_sums", a.value_sums, "without values"));
    PKV_RETURN_IF_ERROR(check_range("sketch_bits without values", g.sketch_bits, 0, 0));
    PKV_RETURN_IF_ERROR(check_range("value_norm without values", g.value_norm, 0, 0));
  }
  return check_pointer("good_counts", a.good_counts, a.batch);
}

}  // namespace

absl::Status stage_encode_sync(const Stream& stream, pkv_encode_args args) {
  const Device& device = *stream.device();
  PKV_RETURN_IF_ERROR(check_range("batch", args.batch, 0, INT32_MAX));
  PKV_RETURN_IF_ERROR(check_codec(args.codec));
  const pkv_geometry& g = *args.codec.geometry;
  PKV_ASSIGN_OR_RETURN(const TensorView keys,
                       check_tensor(device, "keys", args.keys,
                                    {exactly("b", args.batch), exactly("h", g.kv_heads),
                                     at_least("t", 0), exactly("d", g.head_dim)},
                                    kFloatTypes));
  args.keys = keys.tensor();
  TensorView values = keys;
  if (is_present(args.values)) {
    PKV_RETURN_IF_ERROR(check_range("value_dim with values", g.value_dim, 1, INT32_MAX));
    PKV_ASSIGN_OR_RETURN(values,
                         check_tensor(device, "values", args.values,
                                      {exactly("b", args.batch), exactly("h", g.kv_heads),
                                       exactly("t", keys.extent(2)), exactly("dv", g.value_dim)},
                                      kFloatTypes));
    args.values = values.tensor();
  }
  PKV_RETURN_IF_ERROR(check_outputs(args));
  if (args.batch == 0) return absl::OkStatus();
  PKV_RETURN_IF_ERROR(check_store(device, g, args.store));
  PKV_RETURN_IF_ERROR(check_entries(stream, args, keys.extent(2)));
  return run_stage_sync(stream, "encode", device.backend().encode, args);
}

}  // namespace pkv
