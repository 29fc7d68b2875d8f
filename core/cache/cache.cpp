// Making a cache, and its sequences as wholes.
#include "core/cache/cache.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "core/base/status.h"
#include "core/base/text.h"
#include "core/cache/encode_scratch.h"
#include "core/pipeline/checks.h"

namespace pkv {

absl::StatusOr<std::unique_ptr<Cache>> Cache::create(std::shared_ptr<const Device> device,
                                                     const Config& config,
                                                     const pkv_cache_desc& desc) {
  PKV_ASSIGN_OR_RETURN(CacheShape checked, CacheShape::create(device, config, desc));
  std::unique_ptr<Cache> cache(new Cache(std::move(checked)));
  const CacheShape& shape = cache->shape_;
  cache->pools_ = std::make_unique<CachePools>();
  CachePools& pools = *cache->pools_;
  if (desc.max_bytes > 0) pools.budget.limit = desc.max_bytes;
  const int32_t rows_kind =
      desc.rows_memory == PKV_ALLOC_DEVICE ? PKV_MEMORY_DEVICE : PKV_MEMORY_HOST;
  const auto make = [&](int32_t kind, int64_t bytes, std::string_view name) {
    return std::make_unique<PagePool>(device, kind, bytes, name, &pools.budget);
  };
  // Steps attend to the sink in full.
  const bool is_near = shape.keeps_recent_rows();
  pools.sinks =
      make(is_near ? PKV_MEMORY_DEVICE : rows_kind, shape.sink_page_bytes, "rows of the sink");
  pools.rows = make(rows_kind, shape.row_page_bytes, "rows");
  if (is_near) {
    pools.recent = std::make_unique<PagePool>(device, PKV_MEMORY_DEVICE, shape.row_page_bytes,
                                              "recent rows", &pools.recent_budget);
  }
  pools.records = make(PKV_MEMORY_DEVICE, shape.record_page_bytes, "key records");
  PKV_ASSIGN_OR_RETURN(pools.numbers, HostNumbers::create(device, patterns_of(shape)));
  if (cache->is_on_device()) {
    const int64_t count = desc.layers * CachePools::kFaultNumbers;
    PKV_ASSIGN_OR_RETURN(pools.faults,
                         Buffer::create(device, PKV_MEMORY_HOST, count * int64_t{sizeof(int64_t)}));
    std::fill_n(pools.faults.as<int64_t>(), count, 0);
  }
  PKV_ASSIGN_OR_RETURN(const int64_t encode_bytes, encode_scratch_bytes(shape));
  PKV_ASSIGN_OR_RETURN(pools.encode_scratch,
                       Buffer::create(device, PKV_MEMORY_DEVICE, encode_bytes));
  for (int32_t number = 0; number < desc.layers; ++number) {
    PKV_ASSIGN_OR_RETURN(std::unique_ptr<Layer> layer, Layer::create(shape, pools, number));
    cache->layers_.push_back(std::move(layer));
  }
  cache->slots_.resize(static_cast<std::size_t>(desc.sequences));
  PKV_ASSIGN_OR_RETURN(cache->last_, Event::create(device));
  if (!shape.sink_logits.empty()) {
    const auto bytes = static_cast<int64_t>(shape.sink_logits.size() * sizeof(float));
    PKV_ASSIGN_OR_RETURN(cache->sink_logits_, Buffer::create(device, PKV_MEMORY_DEVICE, bytes));
    PKV_ASSIGN_OR_RETURN(const Stream stream, Stream::create(device));
    PKV_RETURN_IF_ERROR(stream.copy(cache->sink_logits_.data(), shape.sink_logits.data(), bytes));
    PKV_RETURN_IF_ERROR(stream.sync());
  }
  return cache;
}

absl::Status Cache::check_layer(int32_t layer) const {
  return check_index("layer", layer, 0, int64_t{shape_.desc.layers} - 1);
}

absl::Status Cache::check_sequence(int64_t sequence) const {
  return check_index("sequence", sequence, 0, int64_t{shape_.desc.sequences} - 1);
}

absl::Status Cache::check_slot(int64_t sequence) const {
  PKV_RETURN_IF_ERROR(check_sequence(sequence));
  if (slots_[static_cast<std::size_t>(sequence)].is_used) return absl::OkStatus();
  return absl::FailedPreconditionError(
      str_cat("sequence ", sequence,
              " is not in use, accepted: one that was added or forked and "
              "has not been removed"));
}

absl::StatusOr<int32_t> Cache::free_slot() const {
  const auto free =
      std::find_if(slots_.begin(), slots_.end(), [](const Slot& slot) { return !slot.is_used; });
  if (free != slots_.end()) return static_cast<int32_t>(free - slots_.begin());
  return absl::ResourceExhaustedError(
      str_cat("needs 1 sequence, has room for 0 (all ", slots_.size(), " are in use)"));
}

absl::StatusOr<int32_t> Cache::add() {
  const std::lock_guard lock(mutex_);
  PKV_ASSIGN_OR_RETURN(const int32_t sequence, free_slot());
  slots_[static_cast<std::size_t>(sequence)].is_used = true;
  return sequence;
}

absl::Status Cache::clear(const Stream& stream, int32_t sequence) {
  absl::Status status;
  for (const auto& layer : layers_) {
    const absl::Status cleared = layer->clear(stream, sequence);
    if (status.ok()) status = cleared;
  }
  return end(stream, status);
}

absl::Status Cache::remove(const Stream& stream, int32_t sequence) {
  const std::lock_guard lock(mutex_);
  PKV_RETURN_IF_ERROR(check_slot(sequence));
  PKV_RETURN_IF_ERROR(begin(stream));
  slots_[static_cast<std::size_t>(sequence)].is_used = false;
  return clear(stream, sequence);
}

absl::Status Cache::reset(const Stream& stream, int32_t sequence) {
  const std::lock_guard lock(mutex_);
  PKV_RETURN_IF_ERROR(check_slot(sequence));
  PKV_RETURN_IF_ERROR(begin(stream));
  return clear(stream, sequence);
}

absl::Status Cache::truncate(const Stream& stream, int32_t sequence, int64_t tokens) {
  const std::lock_guard lock(mutex_);
  PKV_RETURN_IF_ERROR(check_slot(sequence));
  for (int32_t number = 0; number < shape_.desc.layers; ++number) {
    PKV_RETURN_IF_ERROR(check_index(str_cat("tokens of layer ", number), tokens, 0,
                                    layer(number).state(sequence).tokens));
  }
  PKV_RETURN_IF_ERROR(begin(stream));
  std::vector<std::pair<Layer*, Layer::Cut>> cuts;
  for (const auto& layer : layers_) {
    if (layer->state(sequence).tokens == tokens) continue;
    PKV_ASSIGN_OR_RETURN(Layer::Cut change, layer->prepare_cut(stream, sequence, tokens));
    cuts.emplace_back(layer.get(), std::move(change));
  }
  absl::Status status;
  for (auto& [layer, change] : cuts) {
    const absl::Status done = layer->cut(stream, change);
    if (status.ok()) status = done;
  }
  return end(stream, status);
}

absl::StatusOr<int32_t> Cache::fork(const Stream& stream, int32_t source, int64_t tokens) {
  const std::lock_guard lock(mutex_);
  PKV_RETURN_IF_ERROR(check_slot(source));
  PKV_ASSIGN_OR_RETURN(const int32_t target, free_slot());
  for (int32_t number = 0; number < shape_.desc.layers; ++number) {
    PKV_RETURN_IF_ERROR(check_index(str_cat("tokens of layer ", number), tokens, -1,
                                    layer(number).state(source).tokens));
  }
  PKV_RETURN_IF_ERROR(begin(stream));
  absl::Status status = within_memory([&]() -> absl::Status {
    for (const auto& layer : layers_) {
      PKV_RETURN_IF_ERROR(layer->share(stream, source, target));
      if (tokens < 0 || tokens == layer->state(target).tokens) continue;
      PKV_ASSIGN_OR_RETURN(Layer::Cut change, layer->prepare_cut(stream, target, tokens));
      PKV_RETURN_IF_ERROR(layer->cut(stream, change));
    }
    return absl::OkStatus();
  });
  if (status.ok()) status = within_memory([&] { return end(stream, absl::OkStatus()); });
  if (!status.ok()) {
    clear(stream, target).IgnoreError();
    return status;
  }
  slots_[static_cast<std::size_t>(target)].is_used = true;
  return target;
}

absl::StatusOr<int64_t> Cache::length(int32_t number, int32_t sequence) const {
  const std::lock_guard lock(mutex_);
  PKV_RETURN_IF_ERROR(check_layer(number));
  PKV_RETURN_IF_ERROR(check_slot(sequence));
  return layer(number).state(sequence).tokens;
}

absl::StatusOr<pkv_cache_regions> Cache::regions(int32_t number, int32_t sequence) const {
  const std::lock_guard lock(mutex_);
  PKV_RETURN_IF_ERROR(check_layer(number));
  PKV_RETURN_IF_ERROR(check_slot(sequence));
  const SequenceState& state = layer(number).state(sequence);
  pkv_cache_regions regions{};
  regions.struct_size = sizeof regions;
  regions.is_encoded = state.encoded > 0 ? 1 : 0;
  regions.tokens = state.tokens;
  regions.sink = std::min(state.tokens, shape_.desc.sink);
  regions.zone = state.zone;
  regions.tail = state.tokens - regions.sink - regions.zone;
  regions.fit_length = state.encoded_with != nullptr ? state.encoded_with->length : 0;
  regions.next_fit = layer(number).next_fit_of(state);
  regions.fits = static_cast<int64_t>(state.fits.size());
  return regions;
}

absl::Status Cache::refit(const Stream& stream, int32_t number, int32_t sequence,
                          const pkv_tensor* queries) {
  const std::lock_guard lock(mutex_);
  PKV_RETURN_IF_ERROR(check_layer(number));
  PKV_RETURN_IF_ERROR(check_slot(sequence));
  Layer& layer = this->layer(number);
  const SequenceState& state = layer.state(sequence);
  if (state.encoded == 0 || layer.has_imported()) {
    return absl::FailedPreconditionError(str_cat(
        "layer ", number, ", sequence ", sequence,
        layer.has_imported()
            ? ": its codec was imported"
            : str_cat(": its zone of ", state.zone, " tokens has no records, accepted: a zone of ",
                      first_fit(shape_.rules), " or more")));
  }
  std::optional<TensorView> view;
  if (queries != nullptr) {
    PKV_ASSIGN_OR_RETURN(view,
                         check_tensor(*shape_.device, "queries", *queries,
                                      {at_least("m", 0), exactly("hq", shape_.desc.query_heads),
                                       exactly("d", shape_.geometry.head_dim)},
                                      kFloatTypes));
  }
  PKV_RETURN_IF_ERROR(begin(stream));
  // What waits for a flush goes first: its queries were kept for the fits that were due.
  const absl::Status status = within_memory([&]() -> absl::Status {
    if (shape_.desc.deferred != 0) PKV_RETURN_IF_ERROR(layer.flush(stream, sequence));
    return layer.refit(stream, sequence, view ? &*view : nullptr);
  });
  return end(stream, status);
}

absl::Status Cache::import_codec(int32_t number, const Codec& codec) {
  const std::lock_guard lock(mutex_);
  PKV_RETURN_IF_ERROR(check_layer(number));
  if (codec.device() != shape_.device) {
    return absl::InvalidArgumentError(
        "codec belongs to another device, accepted: one of the device of the cache");
  }
  Layer& layer = this->layer(number);
  if (!layer.is_sparse()) {
    return absl::FailedPreconditionError(
        str_cat("layer ", number, " attends in full, accepted: sparse layers"));
  }
  for (int32_t sequence = 0; sequence < shape_.desc.sequences; ++sequence) {
    const int64_t tokens = layer.state(sequence).tokens;
    if (tokens == 0) continue;
    return absl::FailedPreconditionError(str_cat("layer ", number, ": sequence ", sequence,
                                                 " holds ", tokens, " tokens, accepted: none"));
  }
  PKV_RETURN_IF_ERROR(check_same_geometry(codec.geometry(), shape_.geometry));
  PKV_ASSIGN_OR_RETURN(const Stream stream, Stream::create(shape_.device));
  PKV_RETURN_IF_ERROR(begin(stream));
  return layer.import_codec(stream, codec.numbers());
}

absl::StatusOr<std::shared_ptr<const Codec>> Cache::codec(int32_t number, int32_t sequence) const {
  const std::lock_guard lock(mutex_);
  PKV_RETURN_IF_ERROR(check_layer(number));
  PKV_RETURN_IF_ERROR(check_slot(sequence));
  PKV_ASSIGN_OR_RETURN(CodecParams numbers, layer(number).codec_of(sequence));
  return Codec::create(shape_.device, std::move(numbers), shape_.codec_options);
}

}  // namespace pkv
