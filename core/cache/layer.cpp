// A layer as a whole: making it, taking tokens back, sharing them. docs/algorithm.md, section 9.
#include "core/cache/layer.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>

#include "core/base/status.h"
#include "core/base/text.h"
#include "core/pipeline/checks.h"

namespace pkv {

absl::StatusOr<std::unique_ptr<Layer>> Layer::create(const CacheShape& shape, CachePools& pools,
                                                     int32_t number) {
  const int32_t sequences = shape.desc.sequences;
  PKV_ASSIGN_OR_RETURN(PageTable sinks, PageTable::create(shape.device, sequences, 1));
  PKV_ASSIGN_OR_RETURN(PageTable rows, PageTable::create(shape.device, sequences, 1));
  PKV_ASSIGN_OR_RETURN(PageTable records, PageTable::create(shape.device, sequences, 1));
  const LayerPolicy& policy = shape.policies[static_cast<std::size_t>(number)];
  std::optional<PageTable> recent;
  if (pools.recent != nullptr && policy.attention == PKV_CACHE_SPARSE) {
    PKV_ASSIGN_OR_RETURN(recent, PageTable::create(shape.device, sequences, 1));
  }
  std::unique_ptr<Layer> layer(new Layer(shape, pools, number, policy, std::move(sinks),
                                         std::move(rows), std::move(recent), std::move(records)));
  // Attention in full reads a codec too, the neutral one: it tells which queries are bad.
  PKV_ASSIGN_OR_RETURN(layer->sets_,
                       CodecSets::create(shape.device, shape.geometry, shape.codec_options));
  PKV_ASSIGN_OR_RETURN(const Stream stream, Stream::create(shape.device));
  PKV_RETURN_IF_ERROR(layer->make_states(stream));
  if (!layer->is_sparse()) return layer;
  const auto make = [&](int64_t bytes) {
    return Buffer::create(shape.device, PKV_MEMORY_DEVICE, sequences * bytes);
  };
  PKV_ASSIGN_OR_RETURN(layer->value_sums_, make(shape.value_sum_bytes));
  PKV_ASSIGN_OR_RETURN(layer->good_counts_, make(shape.good_count_bytes));
  PKV_ASSIGN_OR_RETURN(layer->occupancy_, make(shape.occupancy_bytes));
  for (int32_t sequence = 0; sequence < sequences; ++sequence) {
    PKV_RETURN_IF_ERROR(layer->clear_sums(stream, sequence));
  }
  PKV_RETURN_IF_ERROR(stream.sync());
  return layer;
}

absl::StatusOr<Layer::Cut> Layer::prepare_cut(const Stream& stream, int32_t sequence,
                                              int64_t tokens) {
  const SequenceState& state = states_[index(sequence)];
  const int64_t page_tokens = shape_.desc.page_tokens;
  Cut change;
  change.sequence = sequence;
  change.tokens = tokens;
  change.zone = std::min(state.zone, is_sparse() ? zone_of(shape_.rules, tokens) : 0);
  for (const auto& fit : state.fits) {
    if (fit->length <= change.zone) change.fits.push_back(fit);
  }
  if (!change.fits.empty()) change.fit = change.fits.back();
  change.is_encoded =
      change.fit != nullptr || (imported_ && change.zone >= first_fit(shape_.rules));
  change.encode_from = change.zone;
  make_room(sequence, change.zone, 0);
  if (!change.is_encoded) return change;
  if (state.encoded > 0 && change.fit == state.encoded_with) {
    change.set = state.set;
    if (change.zone < state.encoded) change.encode_from -= change.zone % page_tokens;
  } else {
    change.encode_from = 0;
    change.set = imported_slot_;
    if (change.fit != nullptr) {
      PKV_ASSIGN_OR_RETURN(change.set, use(stream, state, *change.fit));
    }
  }
  PKV_RETURN_IF_ERROR(grow(stream, record_pages_, shape_.record_pages(change.zone)));
  PKV_RETURN_IF_ERROR(take_records(state, change.zone, change.encode_from, change.fresh));
  return change;
}

absl::Status Layer::cut(const Stream& stream, Cut& change) {
  const int32_t sequence = change.sequence;
  SequenceState& state = states_[index(sequence)];
  const auto apply = [&]() -> absl::Status {
    if (!change.is_encoded) {
      state.records.clear();
      state.set = nullptr;
      state.encoded = 0;
      state.encoded_with = nullptr;
      return is_sparse() ? clear_sums(stream, sequence) : absl::OkStatus();
    }
    if (change.encode_from == state.encoded && change.fit == state.encoded_with) {
      return absl::OkStatus();
    }
    if (change.encode_from == 0) {
      PKV_RETURN_IF_ERROR(clear_sums(stream, sequence));
    } else {
      const int64_t page = change.encode_from / shape_.desc.page_tokens;
      PKV_RETURN_IF_ERROR(
          copy_sums(stream, sequence, state.records[static_cast<std::size_t>(page)], false));
    }
    state.set = change.set;
    state.encoded = change.encode_from;
    PKV_RETURN_IF_ERROR(
        place_records(stream, sequence, change.zone, change.encode_from, change.fresh));
    PKV_RETURN_IF_ERROR(encode(stream, sequence, change.encode_from, change.zone));
    state.encoded = change.zone;
    state.encoded_with = change.fit;
    return absl::OkStatus();
  };
  const absl::Status status = within_memory(apply);
  state.tokens = change.tokens;
  state.zone = change.zone;
  state.fits = std::move(change.fits);
  while (!state.bad.empty() && state.bad.back().position >= change.tokens) state.bad.pop_back();
  if (!status.ok()) forget_zone(stream, sequence);
  if (pool_) {
    const int64_t blocks = (state.tokens + pool_->page_tokens() - 1) / pool_->page_tokens();
    state.blocks.resize(static_cast<std::size_t>(blocks));
  }
  trim(sequence);
  note_change(sequence);
  ++stamp_;
  return status;
}

absl::Status Layer::share(const Stream& stream, int32_t source, int32_t target) {
  const SequenceState& from = states_[index(source)];
  SequenceState& to = states_[index(target)];
  to = from;
  const auto place = [&](PageTable& table, const std::vector<PageRef>& pages) {
    for (std::size_t i = 0; i < pages.size(); ++i) {
      table.set(pools_.words, target, static_cast<int64_t>(i), pages[i].data());
    }
  };
  note_change(target);
  if (to.sink) sink_pages_.set(pools_.words, target, 0, to.sink.data());
  place(row_pages_, to.rows);
  for (std::size_t i = 0; i < to.rows.size(); ++i) set_near_page(target, static_cast<int64_t>(i));
  place(record_pages_, to.records);
  if (pool_) PKV_RETURN_IF_ERROR(set_blocks(stream, target, std::vector<int32_t>(from.blocks)));
  if (!is_sparse()) return absl::OkStatus();
  const auto copy = [&](const Buffer& live, int64_t bytes) {
    return stream.copy(live.as<std::byte>() + target * bytes, live.as<std::byte>() + source * bytes,
                       bytes);
  };
  PKV_RETURN_IF_ERROR(copy(value_sums_, shape_.value_sum_bytes));
  PKV_RETURN_IF_ERROR(copy(good_counts_, shape_.good_count_bytes));
  ++stamp_;
  return copy(occupancy_, shape_.occupancy_bytes);
}

absl::Status Layer::clear(const Stream& stream, int32_t sequence) {
  states_[index(sequence)] = SequenceState();
  note_change(sequence);
  ++stamp_;
  return is_sparse() ? clear_sums(stream, sequence) : absl::OkStatus();
}

absl::Status Layer::bind(TensorView keys, std::optional<TensorView> values) {
  PKV_ASSIGN_OR_RETURN(PageTable key_table,
                       PageTable::create(shape_.device, shape_.desc.sequences, 1));
  PKV_ASSIGN_OR_RETURN(PageTable value_table,
                       PageTable::create(shape_.device, shape_.desc.sequences, 1));
  pool_.emplace(BoundPool{keys, values, std::move(key_table), std::move(value_table)});
  return absl::OkStatus();
}

// The tables follow; what the pages hold is the caller's.
absl::Status Layer::set_blocks(const Stream& stream, int32_t sequence,
                               std::vector<int32_t> blocks) {
  const auto count = static_cast<int64_t>(blocks.size());
  Words& words = pools_.words;
  PKV_RETURN_IF_ERROR(grow(stream, pool_->key_table, count));
  PKV_RETURN_IF_ERROR(grow(stream, pool_->value_table, count));
  const auto place = [&](PageTable& table, const TensorView& view) {
    for (int64_t i = 0; i < count; ++i) {
      table.set(words, sequence, i,
                static_cast<std::byte*>(view.origin()) +
                    view.element_offset(int64_t{blocks[static_cast<std::size_t>(i)]}, 0, 0, 0) *
                        shape_.element_bytes);
    }
  };
  place(pool_->key_table, pool_->keys);
  if (pool_->values) place(pool_->value_table, *pool_->values);
  states_[index(sequence)].blocks = std::move(blocks);
  return absl::OkStatus();
}

pkv_store Layer::store() const {
  pkv_store store{};
  store.row_bytes = shape_.record_row_bytes;
  store.capacity = shape_.desc.page_tokens;
  store.pages = record_pages_.data();
  store.pages_stride = record_pages_.stride();
  return store;
}

pkv_pages Layer::pages_of(const PageTable& table, int64_t page_tokens, int64_t offset) const {
  pkv_pages pages{};
  pages.table = table.data();
  pages.table_stride = table.stride();
  pages.page_tokens = page_tokens;
  pages.head_bytes = page_tokens * shape_.token_bytes();
  pages.token_bytes = shape_.token_bytes();
  pages.offset = offset;
  return pages;
}

namespace {
pkv_pages bound_pages(const PageTable& table, const TensorView& view) {
  pkv_pages pages{};
  pages.table = table.data();
  pages.table_stride = table.stride();
  pages.page_tokens = view.extent(2);
  pages.head_bytes = view.stride(1) * view.element_bytes();
  pages.token_bytes = view.stride(2) * view.element_bytes();
  return pages;
}
}  // namespace

pkv_pages Layer::keys() const {
  if (pool_) return bound_pages(pool_->key_table, pool_->keys);
  return pages_of(row_pages_, shape_.desc.page_tokens, 0);
}

pkv_pages Layer::values() const {
  if (!pool_) return pages_of(row_pages_, shape_.desc.page_tokens, value_offset());
  return pool_->values ? bound_pages(pool_->value_table, *pool_->values) : keys();
}

pkv_pages Layer::near_keys() const {
  if (pool_ || !near_pages_) return keys();
  return pages_of(*near_pages_, shape_.desc.page_tokens, 0);
}

pkv_pages Layer::near_values() const {
  if (pool_ || !near_pages_) return values();
  return pages_of(*near_pages_, shape_.desc.page_tokens, value_offset());
}

absl::Status Layer::reserve(const Stream& stream, int64_t tokens) {
  PKV_RETURN_IF_ERROR(grow(stream, row_pages_, shape_.row_pages(tokens)));
  if (near_pages_) PKV_RETURN_IF_ERROR(grow(stream, *near_pages_, shape_.row_pages(tokens)));
  PKV_RETURN_IF_ERROR(
      grow(stream, record_pages_, shape_.record_pages(zone_of(shape_.rules, tokens))));
  if (!is_on_device() || !is_sparse() || pools_.is_frozen) return absl::OkStatus();
  // One for each sequence, and as many while they change.
  const int64_t sets = std::min<int64_t>(2 * int64_t{shape_.desc.sequences} + 1, 1 << 16);
  return sets_->reserve(stream, static_cast<int32_t>(sets));
}

int64_t Layer::table_bytes() const {
  int64_t bytes = sink_pages_.bytes() + row_pages_.bytes() + record_pages_.bytes();
  if (near_pages_) bytes += near_pages_->bytes();
  if (pool_) bytes += pool_->key_table.bytes() + pool_->value_table.bytes();
  return bytes + value_sums_.bytes() + good_counts_.bytes() + states_on_device_.bytes();
}

// The sets in use, the neutral one apart, and the numbers of all fits.
int64_t Layer::codec_bytes() const {
  const int64_t kept = *fit_count_ + (imported_ ? 1 : 0);
  return (sets_->used() + kept) * CodecSets::set_bytes(shape_.geometry);
}

}  // namespace pkv
