// What the device knows of a layer: states of sequences in its memory, so that steps read lengths
// where they run. docs/algorithm.md, section 9.
#include <cstddef>

#include "core/base/status.h"
#include "core/cache/layer.h"

namespace pkv {
namespace {

static_assert(sizeof(pkv_sequence_state) == 4 * sizeof(uint64_t));

}  // namespace

absl::Status Layer::make_states(const Stream& stream) {
  if (!Words::are_served(*shape_.device)) return absl::OkStatus();
  const int64_t bytes = shape_.desc.sequences * int64_t{sizeof(pkv_sequence_state)};
  PKV_ASSIGN_OR_RETURN(states_on_device_, Buffer::create(shape_.device, PKV_MEMORY_DEVICE, bytes));
  known_.resize(static_cast<std::size_t>(shape_.desc.sequences));
  coming_.resize(known_.size());
  PKV_RETURN_IF_ERROR(stream.fill(states_on_device_.data(), 0, bytes));
  return stream.sync();
}

pkv_sequence_state Layer::state_of(int32_t sequence) const {
  const SequenceState& state = states_[index(sequence)];
  pkv_sequence_state known{};
  known.tokens = state.tokens;
  known.encoded = state.encoded;
  known.set = state.set != nullptr ? state.set->index() : 0;
  // With captured steps about, a launch may append no more than the host has counted already.
  if (pool_ || pools_.is_frozen) {
    known.limit = state.tokens + coming_[index(sequence)];
    return known;
  }
  const int64_t sink = state.sink ? shape_.desc.sink : 0;
  const auto rows = static_cast<int64_t>(state.rows.size()) * shape_.desc.page_tokens;
  known.limit = sink == shape_.desc.sink ? sink + rows : 0;
  return known;
}

void Layer::collect_changes() {
  for (const int32_t sequence : touched_) {
    const pkv_sequence_state wanted = state_of(sequence);
    pkv_sequence_state& known = known_[index(sequence)];
    const auto update = [&](int64_t pkv_sequence_state::*field) {
      if (known.*field == wanted.*field) return;
      known.*field = wanted.*field;
      pools_.words.set(&(states_on_device()[sequence].*field),
                       static_cast<uint64_t>(wanted.*field));
    };
    update(&pkv_sequence_state::tokens);
    update(&pkv_sequence_state::encoded);
    update(&pkv_sequence_state::limit);
    update(&pkv_sequence_state::set);
  }
  touched_.clear();
}

absl::Status Layer::settle(const Stream& stream) {
  collect_changes();
  return pools_.words.flush(stream);
}

absl::Status Layer::place(const Stream& stream, const Input& input) const {
  const Device& device = *shape_.device;
  pkv_place_args args{};
  args.struct_size = sizeof args;
  args.kv_heads = shape_.geometry.kv_heads;
  args.batch = static_cast<int32_t>(input.sequences.size());
  args.sequences = input.sequences.data();
  args.counts = input.counts.data();
  args.states = states_on_device();
  args.keys = input.keys->tensor();
  if (input.values != nullptr) args.values = input.values->tensor();
  args.sink = shape_.desc.sink;
  args.sink_keys = sink_keys();
  args.sink_values = sink_values();
  args.row_keys = keys();
  args.row_values = values();
  if (near_pages_) {
    args.recent_keys = near_keys();
    args.recent_values = near_values();
  }
  return device.call("place", device.backend().place, stream.handle(), &args);
}

absl::Status Layer::advance(const Stream& stream, std::span<const int32_t> sequences,
                            std::span<const int64_t> counts, bool appends, pkv_advance_args args) {
  const Device& device = *shape_.device;
  args.struct_size = sizeof args;
  args.appends = appends ? 1 : 0;
  args.batch = static_cast<int32_t>(sequences.size());
  args.sequences = sequences.data();
  args.counts = counts.data();
  args.states = states_on_device();
  args.sink = shape_.desc.sink;
  args.window = window();
  args.row_origin = row_origin();
  args.fault = pools_.fault(number_);
  return device.call("advance", device.backend().advance, stream.handle(), &args);
}

bool Layer::is_behind_by(std::span<const int32_t> sequences,
                         std::span<const int64_t> counts) const {
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    const std::size_t s = index(sequences[i]);
    if (known_[s].tokens + counts[i] != states_[s].tokens) return false;
  }
  return true;
}

void Layer::note_appended(std::span<const int32_t> sequences) {
  for (const int32_t sequence : sequences) {
    known_[index(sequence)].tokens = states_[index(sequence)].tokens;
  }
}

void Layer::follow(int32_t sequence, int64_t count) {
  states_[index(sequence)].tokens += count;
  known_[index(sequence)].tokens += count;
  note_change(sequence);
  ++stamp_;
}

}  // namespace pkv
