#include "core/cache/step_numbers.h"

#include <algorithm>

#include "core/base/status.h"
#include "core/format/seen.h"

namespace pkv {
namespace {

// What tells one query token's view of its sequence.
struct Entry {
  int32_t sequence;
  int32_t set;
  int64_t keys;        // with records
  int64_t sink_start;  // the dense parts: of the sink, and of what lies behind the records
  int64_t sink_tokens;
  int64_t row_start;  // counted from the first position of the row table
  int64_t row_tokens;
};

Entry entry_of(const CacheShape& shape, const Layer& layer, int32_t sequence, int64_t position,
               bool is_exact) {
  const SequenceState& state = layer.state(sequence);
  Entry entry{};
  entry.sequence = sequence;
  entry.keys = layer.keys_by_records(state, is_exact);
  if (entry.keys > 0) entry.set = state.set->index();
  const format::SeenTokens seen =
      format::seen_tokens(shape.desc.sink, layer.window(), entry.keys, position);
  entry.sink_start = seen.sink_start;
  entry.sink_tokens = seen.sink_tokens;
  entry.row_start = seen.row_start - layer.row_origin();
  entry.row_tokens = seen.row_tokens;
  return entry;
}

// Calls body(entry) for every query token. Those of a sequence end with its last token.
template <class Body>
void for_each_entry(const CacheShape& shape, const Layer& layer, const StepCall& call, Body body) {
  for (std::size_t i = 0; i < call.sequences.size(); ++i) {
    const int64_t count = call.counts[i];
    const int64_t begin = layer.state(call.sequences[i]).tokens - count;
    for (int64_t t = 0; t < count; ++t) {
      Entry entry = entry_of(shape, layer, call.sequences[i], begin + t, call.is_exact);
      if (!call.without_dense.empty() && call.without_dense[i] != 0) {
        entry.sink_tokens = entry.row_tokens = 0;
      }
      body(entry);
    }
  }
}

}  // namespace

StepExtents extents_of(const CacheShape& shape, const Layer& layer, const StepCall& call) {
  StepExtents extents;
  for_each_entry(shape, layer, call, [&](const Entry& entry) {
    extents.keys = std::max(extents.keys, entry.keys);
    extents.sink = std::max(extents.sink, entry.sink_tokens);
    extents.rows = std::max(extents.rows, entry.row_tokens);
  });
  return extents;
}

StepExtents captured_extents(const CacheShape& shape, const Layer& layer, bool is_exact,
                             int64_t tokens) {
  const RegionRules& rules = shape.rules;
  StepExtents extents;
  extents.sink = std::min(rules.sink, tokens);
  extents.rows = tokens - extents.sink;
  if (layer.policy().attention == PKV_CACHE_WINDOW) {
    extents.rows = std::min(extents.rows, layer.policy().window);
  } else if (layer.is_sparse() && !is_exact) {
    extents.keys = zone_of(rules, tokens);
    // A zone without records, or an interval that no flush has taken yet.
    extents.rows = std::min(extents.rows, rules.local + first_fit(rules) + 2 * rules.interval);
  }
  return extents;
}

void write_numbers(const CacheShape& shape, const Layer& layer, const StepCall& call,
                   const StepNumbers& numbers) {
  int64_t next = 0;
  for_each_entry(shape, layer, call, [&](const Entry& entry) {
    numbers.lengths[next] = entry.keys;
    numbers.sink_starts[next] = entry.sink_start;
    numbers.sink_lengths[next] = entry.sink_tokens;
    numbers.row_starts[next] = entry.row_tokens > 0 ? entry.row_start : 0;
    numbers.row_lengths[next] = entry.row_tokens;
    numbers.sequences[next] = entry.sequence;
    numbers.sets[next] = entry.set;
    ++next;
  });
}

absl::Status enqueue_numbers(Layer& layer, const Stream& stream, const StepCall& call,
                             const StepExtents& extents, const StepNumbers& numbers) {
  bool appends = call.appends;
  if (!call.is_captured) {
    // The launch that reads the lengths also writes them, unless the append has done so.
    appends = appends && layer.is_behind_by(call.sequences, call.counts);
    if (appends) layer.note_appended(call.sequences);
    PKV_RETURN_IF_ERROR(layer.settle(stream));
  }
  pkv_advance_args args{};
  args.uses_records = layer.is_sparse() && !call.is_exact ? 1 : 0;
  args.most_keys = extents.keys;
  args.most_rows = call.without_dense.empty() ? extents.rows : INT64_MAX;
  args.out_sequences = numbers.sequences;
  args.out_sets = numbers.sets;
  args.keys = numbers.lengths;
  args.sink_starts = numbers.sink_starts;
  args.sink_lengths = numbers.sink_lengths;
  args.row_starts = numbers.row_starts;
  args.row_lengths = numbers.row_lengths;
  return layer.advance(stream, call.sequences, call.counts, appends, args);
}

}  // namespace pkv
