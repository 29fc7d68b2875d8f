// The zone of a layer: following the schedule, and the records. docs/algorithm.md, section 9.
#include <algorithm>
#include <cstddef>
#include <utility>

#include "core/base/status.h"
#include "core/cache/layer.h"
#include "core/pipeline/run_stage.h"

namespace pkv {

// Record pages for keys [from, zone): those that are missing, and one for each that is shared.
absl::Status Layer::take_records(const SequenceState& state, int64_t zone, int64_t from,
                                 std::vector<PageRef>& fresh) const {
  const int64_t page_tokens = shape_.desc.page_tokens;
  int64_t count = 0;
  for (int64_t page = from / page_tokens; page < shape_.record_pages(zone); ++page) {
    const bool is_own = page < static_cast<int64_t>(state.records.size()) &&
                        !state.records[static_cast<std::size_t>(page)].is_shared();
    if (!is_own) ++count;
  }
  return pools_.records->take(count, fresh);
}

absl::Status Layer::place_records(const Stream& stream, int32_t sequence, int64_t zone,
                                  int64_t from, std::vector<PageRef>& fresh) {
  SequenceState& state = states_[index(sequence)];
  const int64_t page_tokens = shape_.desc.page_tokens;
  const int64_t pages = shape_.record_pages(zone);
  const auto held = std::min(pages, static_cast<int64_t>(state.records.size()));
  state.records.resize(static_cast<std::size_t>(pages));
  for (int64_t page = from / page_tokens; page < pages; ++page) {
    PageRef& ref = state.records[static_cast<std::size_t>(page)];
    if (page < held && !ref.is_shared()) continue;
    if (page * page_tokens < from) {  // records before `from` stay
      PKV_RETURN_IF_ERROR(
          stream.copy(fresh.back().data(), ref.data(), pools_.records->page_bytes()));
    }
    ref = std::move(fresh.back());
    fresh.pop_back();
  }
  for (int64_t page = from / page_tokens; page < pages; ++page) {
    record_pages_.set(pools_.words, sequence, page,
                      state.records[static_cast<std::size_t>(page)].data());
  }
  return absl::OkStatus();
}

// The sums of a sequence, to or from the place for them in a page.
absl::Status Layer::copy_sums(const Stream& stream, int32_t sequence, const PageRef& page,
                              bool to_page) const {
  struct Part {
    const Buffer& live;
    int64_t bytes;
    int64_t at;
  };
  for (const Part& part : {Part{value_sums_, shape_.value_sum_bytes, shape_.value_sums_at},
                           Part{good_counts_, shape_.good_count_bytes, shape_.good_counts_at},
                           Part{occupancy_, shape_.occupancy_bytes, shape_.occupancy_at}}) {
    std::byte* live = part.live.as<std::byte>() + sequence * part.bytes;
    std::byte* kept = static_cast<std::byte*>(page.data()) + part.at;
    PKV_RETURN_IF_ERROR(stream.copy(to_page ? kept : live, to_page ? live : kept, part.bytes));
  }
  return absl::OkStatus();
}

absl::Status Layer::clear_sums(const Stream& stream, int32_t sequence) const {
  const auto clear = [&](const Buffer& live, int64_t bytes) {
    return stream.fill(live.as<std::byte>() + sequence * bytes, 0, bytes);
  };
  PKV_RETURN_IF_ERROR(clear(value_sums_, shape_.value_sum_bytes));
  PKV_RETURN_IF_ERROR(clear(good_counts_, shape_.good_count_bytes));
  return clear(occupancy_, shape_.occupancy_bytes);
}

// Keys [begin, end) of the zone with the codec in use, run by run; a run ends with its page of rows
// or of records. Pages are in place.
absl::Status Layer::encode(const Stream& stream, int32_t sequence, int64_t begin, int64_t end) {
  const Device& device = *shape_.device;
  const SequenceState& state = states_[index(sequence)];
  const int64_t page_tokens = shape_.desc.page_tokens;
  const pkv_geometry& g = shape_.geometry;
  for (int64_t done = begin; done < end;) {
    if (done % page_tokens == 0) {
      PKV_RETURN_IF_ERROR(copy_sums(
          stream, sequence, state.records[static_cast<std::size_t>(done / page_tokens)], true));
    }
    const int64_t room = page_tokens - done % page_tokens;
    const RowRun run = near_run_at(state, shape_.desc.sink + done, std::min(room, end - done));
    const int64_t key_shape[4] = {1, g.kv_heads, run.tokens, g.head_dim};
    const int64_t key_strides[4] = {0, run.key_head_stride, run.key_token_stride, 1};
    const int64_t value_shape[4] = {1, g.kv_heads, run.tokens, g.value_dim};
    const int64_t value_strides[4] = {0, run.value_head_stride, run.value_token_stride, 1};
    const int64_t host_numbers[] = {done, run.tokens, state.set->index()};
    PKV_ASSIGN_OR_RETURN(const int64_t* numbers,
                         pools_.numbers->put(stream, pools_.words, host_numbers));
    PKV_RETURN_IF_ERROR(pools_.words.flush(stream));
    pkv_encode_args args{};
    args.struct_size = sizeof args;
    args.batch = 1;
    args.codec = sets_->params();
    args.codec.set_of = reinterpret_cast<const int32_t*>(numbers + 2);
    args.keys.data = run.keys;
    args.keys.device_type = device.info().device_type;
    args.keys.device_id = device.info().device_id;
    args.keys.ndim = 4;
    args.keys.dtype = shape_.desc.dtype;
    args.keys.shape = key_shape;
    args.keys.strides = key_strides;
    if (g.value_dim > 0) {
      args.values = args.keys;
      args.values.shape = value_shape;
      if (run.values != nullptr) {
        args.values.data = run.values;
        args.values.strides = value_strides;
      }
      args.value_sums = value_sums_.as<double>();
    }
    args.sequences = pools_.numbers->identity() + sequence;
    args.starts = numbers;
    args.counts = numbers + 1;
    args.store = store();
    args.occupancy = occupancy_.as<int32_t>();
    args.good_counts = good_counts_.as<int64_t>();
    PKV_RETURN_IF_ERROR(device.call("encode", device.backend().encode.run, stream.handle(), &args,
                                    pools_.encode_scratch.data()));
    done += run.tokens;
    pools_.encoded += run.tokens * g.kv_heads;
  }
  return absl::OkStatus();
}

// Once the sequence holds `tokens` tokens, whose rows are in place.
absl::StatusOr<Layer::Advance> Layer::prepare_advance(const Stream& stream, int32_t sequence,
                                                      int64_t tokens) {
  const SequenceState& state = states_[index(sequence)];
  Advance advance;
  advance.zone = is_sparse() ? zone_of(shape_.rules, tokens) : 0;
  if (advance.zone <= state.zone && state.encoded == (state.set ? state.zone : 0)) {
    advance.zone = state.zone;
    advance.encode_from = advance.zone;
    return advance;
  }
  int64_t fit = next_fit_of(state);
  for (; fit <= advance.zone && fit != kNever; fit = next_fit(shape_.rules, fit)) {
    advance.pending.push_back(make_fit(fit));
  }
  if (!advance.pending.empty()) {
    advance.fit = advance.pending.back();
  } else if (!state.fits.empty()) {
    advance.fit = state.fits.back();
  }
  if (advance.fit != nullptr) {
    PKV_ASSIGN_OR_RETURN(advance.set, use(stream, state, *advance.fit));
  } else if (imported_ && advance.zone >= first_fit(shape_.rules)) {
    advance.set = imported_slot_;
  }
  advance.is_encoded = advance.set != nullptr;
  make_room(sequence, advance.zone, advance.pending.size());
  if (!advance.is_encoded) return advance;
  const bool goes_on = state.encoded > 0 && state.encoded_with == advance.fit;
  advance.encode_from = goes_on ? state.encoded : 0;
  PKV_RETURN_IF_ERROR(grow(stream, record_pages_, shape_.record_pages(advance.zone)));
  PKV_RETURN_IF_ERROR(take_records(state, advance.zone, advance.encode_from, advance.fresh));
  return advance;
}

void Layer::make_room(int32_t sequence, int64_t zone, std::size_t fits) {
  SequenceState& state = states_[index(sequence)];
  const auto reserve = [](auto& list, std::size_t count) {
    if (count > list.capacity()) list.reserve(std::max(count, 2 * list.capacity()));
  };
  const auto pages = static_cast<std::size_t>(shape_.record_pages(zone));
  reserve(state.records, pages);
  reserve(state.fits, state.fits.size() + fits);
  if (!is_on_device()) return;
  reserve(touched_, touched_.size() + 8);
  // An entry and three numbers of each page's encoding, twice that where rows' pages end within it,
  // and an entry of its rows.
  pools_.words.make_room(9 * (pages + 1));
}

absl::Status Layer::run_advance(const Stream& stream, int32_t sequence, Advance& advance) {
  SequenceState& state = states_[index(sequence)];
  if (advance.zone == state.zone && advance.set == nullptr) return absl::OkStatus();
  note_change(sequence);
  if (advance.is_encoded) {
    state.set = advance.set;
    if (advance.encode_from == 0) PKV_RETURN_IF_ERROR(clear_sums(stream, sequence));
    state.encoded = advance.encode_from;
    PKV_RETURN_IF_ERROR(
        place_records(stream, sequence, advance.zone, advance.encode_from, advance.fresh));
    PKV_RETURN_IF_ERROR(encode(stream, sequence, advance.encode_from, advance.zone));
    state.encoded = advance.zone;
    state.encoded_with = advance.fit;
    drop_recent(sequence, advance.zone / shape_.desc.page_tokens);
  }
  state.zone = advance.zone;
  for (auto& fit : advance.pending) state.fits.push_back(std::move(fit));
  return absl::OkStatus();
}

absl::Status Layer::append(const Stream& stream, const Input& input) {
  const auto batch = input.sequences.size();
  std::vector<Advance> advances(batch);
  std::vector<std::vector<BadToken>> bad(batch);
  // Only host memory can be looked at without waiting for a device.
  const bool looks = shape_.device->info().device_type == PKV_DEVICE_CPU;
  const auto prepare = [&]() -> absl::Status {
    int64_t first = 0;
    for (std::size_t i = 0; i < batch; ++i) {
      const int32_t sequence = input.sequences[i];
      SequenceState& state = states_[index(sequence)];
      const int64_t count = input.counts[i];
      if (input.keys != nullptr) {
        PKV_RETURN_IF_ERROR(take_rows(stream, sequence, state.tokens + count));
      }
      if (!is_on_device()) {
        PKV_RETURN_IF_ERROR(
            write_rows(stream, sequence, input, first, count, looks ? &bad[i] : nullptr));
      }
      if (input.queries != nullptr && is_sparse()) {
        PKV_RETURN_IF_ERROR(keep_queries(stream, sequence, *input.queries, first, count));
      }
      first += count;
    }
    if (is_on_device() && input.keys != nullptr) {
      for (std::size_t i = 0; i < batch; ++i) coming_[index(input.sequences[i])] = input.counts[i];
      PKV_RETURN_IF_ERROR(settle(stream));
      PKV_RETURN_IF_ERROR(place(stream, input));
    }
    if (is_on_device() && looks) {  // a device of host memory: that of tests
      PKV_RETURN_IF_ERROR(stream.sync());
      Input placed = input;
      placed.keys = nullptr;
      for (std::size_t i = 0; i < batch; ++i) {
        PKV_RETURN_IF_ERROR(
            write_rows(stream, input.sequences[i], placed, 0, input.counts[i], &bad[i]));
      }
    }
    for (std::size_t i = 0; i < batch; ++i) {
      std::vector<BadToken>& known = states_[index(input.sequences[i])].bad;
      known.reserve(known.size() + bad[i].size());
    }
    if (shape_.desc.deferred != 0) return absl::OkStatus();
    for (std::size_t i = 0; i < batch; ++i) {
      const int32_t sequence = input.sequences[i];
      PKV_ASSIGN_OR_RETURN(
          advances[i],
          prepare_advance(stream, sequence, states_[index(sequence)].tokens + input.counts[i]));
    }
    return absl::OkStatus();
  };
  absl::Status status = within_memory(prepare);
  std::size_t done = 0;
  for (; status.ok() && shape_.desc.deferred == 0 && done < batch; ++done) {
    status =
        within_memory([&] { return run_advance(stream, input.sequences[done], advances[done]); });
  }
  for (std::size_t i = 0; i < batch; ++i) {
    SequenceState& state = states_[index(input.sequences[i])];
    note_change(input.sequences[i]);
    if (is_on_device()) coming_[index(input.sequences[i])] = 0;
    if (status.ok()) {
      state.tokens += input.counts[i];
      state.bad.insert(state.bad.end(), bad[i].begin(), bad[i].end());
      continue;
    }
    if (i < done) forget_zone(stream, input.sequences[i]);
    trim(input.sequences[i]);
  }
  if (status.ok() || done > 0) ++stamp_;
  return status;
}

void Layer::take_back(const Stream& stream, int32_t sequence, int64_t tokens) {
  SequenceState& state = states_[index(sequence)];
  state.tokens = tokens;
  while (!state.bad.empty() && state.bad.back().position >= tokens) state.bad.pop_back();
  if (state.zone > (is_sparse() ? zone_of(shape_.rules, tokens) : 0)) forget_zone(stream, sequence);
  trim(sequence);
  note_change(sequence);
  ++stamp_;
}

// After a device failed in the middle: the zone is attended in full until the next flush.
void Layer::forget_zone(const Stream& stream, int32_t sequence) {
  SequenceState& state = states_[index(sequence)];
  note_change(sequence);
  const int64_t zone = is_sparse() ? zone_of(shape_.rules, state.tokens) : 0;
  while (!state.fits.empty() && state.fits.back()->length > zone) state.fits.pop_back();
  state.zone = 0;
  state.encoded = 0;
  state.encoded_with = nullptr;
  state.set = nullptr;
  state.records.clear();
  clear_sums(stream, sequence).IgnoreError();
}

absl::Status Layer::flush(const Stream& stream, int32_t sequence) {
  PKV_ASSIGN_OR_RETURN(Advance advance,
                       prepare_advance(stream, sequence, states_[index(sequence)].tokens));
  const absl::Status status = within_memory([&] { return run_advance(stream, sequence, advance); });
  if (!status.ok()) forget_zone(stream, sequence);
  ++stamp_;
  return status;
}

absl::Status Layer::refit(const Stream& stream, int32_t sequence, const TensorView* queries) {
  SequenceState& state = states_[index(sequence)];
  Advance advance;
  advance.zone = state.zone;
  advance.fit = make_fit(state.zone);
  PKV_ASSIGN_OR_RETURN(advance.fit->numbers,
                       compute_fit(stream, state, state.zone, queries, false));
  PKV_ASSIGN_OR_RETURN(advance.set, use(stream, state, *advance.fit));
  advance.is_encoded = true;
  PKV_RETURN_IF_ERROR(take_records(state, advance.zone, 0, advance.fresh));
  advance.pending.push_back(advance.fit);
  make_room(sequence, state.zone, 1);
  auto replaced = state.fits.back();
  if (replaced->length == state.zone) {
    state.fits.pop_back();
  } else {
    replaced = nullptr;
  }
  const absl::Status status = within_memory([&] { return run_advance(stream, sequence, advance); });
  if (!status.ok()) {
    forget_zone(stream, sequence);
    if (replaced != nullptr) state.fits.push_back(std::move(replaced));  // where it was: no memory
  }
  ++stamp_;
  return status;
}

}  // namespace pkv
