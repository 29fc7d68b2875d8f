// How the calls of a cache follow each other on streams: waits, captured calls, flushes on a stream
// of their own. docs/cache.md, section 10.
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <utility>

#include "core/base/status.h"
#include "core/base/text.h"
#include "core/cache/cache.h"
#include "core/cache/encode_scratch.h"
#include "core/cache/step_numbers.h"

namespace pkv {

// Nothing enqueued reads what is freed now: pages before pools.
Cache::~Cache() {
  const auto wait = [&]() -> absl::Status {
    PKV_ASSIGN_OR_RETURN(const Stream stream, Stream::create(shape_.device));
    return begin_sync(stream);
  };
  if (has_last_) wait().IgnoreError();
  layers_.clear();
}

absl::Status Cache::begin(const Stream& stream, int32_t layer, Capture capture) {
  PKV_RETURN_IF_ERROR(stream.check_device(shape_.device, "of the cache"));
  is_captured_ = false;
  if (!is_on_device()) {
    if (has_last_) PKV_RETURN_IF_ERROR(last_->wait(stream));
    return stream.sync();
  }
  int32_t is_capturing = 0;
  const Device& device = *shape_.device;
  PKV_RETURN_IF_ERROR(
      device.call("stream", device.backend().stream_capturing, stream.handle(), &is_capturing));
  if (is_capturing != 0) {
    if (capture == Capture::kRefused) {
      return absl::FailedPreconditionError(
          "the stream is being captured, accepted then: append, decode_step, attend and retrieve");
    }
    is_captured_ = true;
    return absl::OkStatus();
  }
  if (has_last_) PKV_RETURN_IF_ERROR(last_->wait(stream));
  PKV_RETURN_IF_ERROR(wait_for_flush(stream, layer));
  return check_faults();
}

absl::Status Cache::begin_sync(const Stream& stream) {
  PKV_RETURN_IF_ERROR(begin(stream));
  PKV_RETURN_IF_ERROR(stream.sync());
  return check_faults();
}

absl::Status Cache::end(const Stream& stream, const absl::Status& status) {
  if (is_captured_) {
    is_captured_ = false;
    pools_->is_frozen = pools_->is_frozen || status.ok();
    return status;
  }
  absl::Status settled;
  if (is_on_device()) {
    for (const auto& layer : layers_) layer->collect_changes();
    settled = pools_->words.flush(stream);
    // Once more before the call is called a failure, whose work is done by now.
    if (!settled.ok()) settled = pools_->words.flush(stream);
  }
  const absl::Status recorded = last_->record(stream);
  has_last_ = has_last_ || recorded.ok();
  if (!recorded.ok()) {  // then now, once, instead of the next call's wait for the event
    settled.Update(stream.sync());
    has_last_ = has_last_ && !settled.ok();
  }
  if (status.ok()) return settled;
  stream.wait();  // a call that is refused leaves nothing behind that uses the caller's memory
  return status;
}

// The layer's, or those of all.
absl::Status Cache::wait_for_flush(const Stream& stream, int32_t layer) {
  for (std::size_t i = 0; i < awaits_flush_.size(); ++i) {
    if (!awaits_flush_[i] || (layer != kAllLayers && i != static_cast<std::size_t>(layer)))
      continue;
    PKV_RETURN_IF_ERROR(flushed_[i].wait(stream));
    awaits_flush_[i] = false;
  }
  if (std::none_of(awaits_flush_.begin(), awaits_flush_.end(), [](bool waits) { return waits; })) {
    pools_->records->release();
    if (pools_->recent != nullptr) pools_->recent->release();
  }
  return absl::OkStatus();
}

// What launches of captured steps have left: the first layer's, and none is told again.
absl::Status Cache::check_faults() {
  absl::Status first;
  if (!is_on_device()) return first;
  for (int32_t number = 0; number < shape_.desc.layers; ++number) {
    int64_t* fault = pools_->fault(number);
    const int64_t kind = std::atomic_ref(fault[0]).exchange(0);
    if (kind == 0 || !first.ok()) continue;
    const char* const what = kind == PKV_ADVANCE_LIMIT  ? "tokens"
                             : kind == PKV_ADVANCE_KEYS ? "keys of the zone"
                                                        : "dense tokens";
    first = absl::ResourceExhaustedError(
        str_cat("layer ", number, ", sequence ", fault[1], ": a captured step needed ", fault[2],
                " ", what, ", had room for ", fault[3],
                " (pkv_cache_reserve, pkv_cache_advance before each launch, pkv_cache_flush)"));
  }
  return first;
}

absl::Status Cache::check_captured(int32_t number, bool appends) const {
  if (pools_->reserved_tokens == 0 || pools_->reserved_step_tokens < batch_.tokens) {
    return absl::FailedPreconditionError(
        str_cat("a captured call of ", batch_.tokens, " tokens, accepted: up to ",
                pools_->reserved_tokens == 0 ? 0 : pools_->reserved_step_tokens,
                ", the step_tokens of pkv_cache_reserve"));
  }
  if (appends && layer(number).is_sparse() && shape_.desc.deferred == 0) {
    return absl::FailedPreconditionError(
        str_cat("a captured append to layer ", number,
                ", which is sparse, accepted: with deferred=1 (encoding and fits need the host)"));
  }
  return absl::OkStatus();
}

// In a step the launch that reads the lengths counts the tokens too.
absl::Status Cache::append_captured(const Stream& stream, int32_t number, bool is_step) {
  PKV_RETURN_IF_ERROR(check_captured(number, true));
  Layer::Input input{};
  input.sequences = batch_.sequences;
  input.counts = batch_.counts;
  input.keys = &*tensors_.keys;
  input.values = tensors_.values ? &*tensors_.values : nullptr;
  PKV_RETURN_IF_ERROR(layer(number).place(stream, input));
  if (is_step) return absl::OkStatus();
  const StepExtents extents =
      captured_extents(shape_, layer(number), false, pools_->reserved_tokens);
  pkv_advance_args args{};
  args.uses_records = layer(number).is_sparse() ? 1 : 0;
  args.most_keys = extents.keys;
  args.most_rows = extents.rows;
  return layer(number).advance(stream, batch_.sequences, batch_.counts, true, args);
}

// Whether a captured step will take the batch's tokens.
absl::Status Cache::check_advance(int32_t number) {
  const Layer& layer = this->layer(number);
  if (layer.has_pool()) {
    return absl::FailedPreconditionError(
        str_cat("layer ", number, " has its rows in the caller's pages, accepted: own pages"));
  }
  const StepExtents most = captured_extents(shape_, layer, false, pools_->reserved_tokens);
  for (std::size_t i = 0; i < batch_.sequences.size(); ++i) {
    const SequenceState& state = layer.state(batch_.sequences[i]);
    const int64_t tokens = state.tokens + batch_.counts[i];
    const int64_t room = std::min(shape_.desc.capacity, pools_->reserved_tokens);
    if (tokens > room) {
      return absl::ResourceExhaustedError(
          str_cat("layer ", number, ", sequence ", batch_.sequences[i], ": needs ", tokens,
                  " tokens, has room for ", room, " (capacity, and what is reserved)"));
    }
    if (layer.policy().attention == PKV_CACHE_WINDOW) continue;
    const int64_t dense = tokens - shape_.desc.sink - state.encoded;
    if (dense <= most.rows) continue;
    return absl::FailedPreconditionError(
        str_cat("layer ", number, ", sequence ", batch_.sequences[i], ": a dense tail of ", dense,
                " tokens, accepted: up to ", most.rows, " in captured steps (pkv_cache_flush)"));
  }
  return absl::OkStatus();
}

absl::Status Cache::advance(const Stream& stream, int32_t number, const pkv_cache_batch& batch) {
  const std::lock_guard lock(mutex_);
  if (!is_on_device()) {
    return absl::FailedPreconditionError(
        str_cat("the tables of this cache lie in host memory, accepted: a backend that captures (",
                shape_.device->backend().name, " does not)"));
  }
  if (number != kAllLayers) PKV_RETURN_IF_ERROR(check_layer(number));
  PKV_RETURN_IF_ERROR(check_batch(batch));
  const int32_t first = number == kAllLayers ? 0 : number;
  const int32_t last = number == kAllLayers ? shape_.desc.layers - 1 : number;
  for (int32_t l = first; l <= last; ++l) PKV_RETURN_IF_ERROR(check_advance(l));
  PKV_RETURN_IF_ERROR(begin(stream, number));
  const auto for_each = [&](auto body) -> absl::Status {
    for (int32_t l = first; l <= last; ++l) {
      for (std::size_t i = 0; i < batch_.sequences.size(); ++i) {
        PKV_RETURN_IF_ERROR(body(layer(l), batch_.sequences[i], batch_.counts[i]));
      }
    }
    return absl::OkStatus();
  };
  absl::Status status = for_each([&](Layer& layer, int32_t sequence, int64_t count) {
    return layer.make_room(stream, sequence, count);
  });
  for_each([&](Layer& layer, int32_t sequence, int64_t count) {
    if (status.ok()) {
      layer.follow(sequence, count);
    } else {
      layer.give_room_back(sequence);
    }
    return absl::OkStatus();
  }).IgnoreError();
  if (status.ok()) {
    appended_ += batch_.tokens * (last - first + 1);
    steps_ += batch_.tokens * (last - first + 1);
  }
  return end(stream, status);
}

// With memory of its own, so that calls that do not wait for it may run beside it.
absl::Status Cache::flush(const Stream& stream) {
  const std::lock_guard lock(mutex_);
  PKV_RETURN_IF_ERROR(begin(stream));
  const bool is_apart = is_on_device();
  if (is_apart && flushed_.empty()) {
    const int64_t bytes = pools_->encode_scratch.bytes();
    PKV_ASSIGN_OR_RETURN(flush_scratch_, Buffer::create(shape_.device, PKV_MEMORY_DEVICE, bytes));
    PKV_ASSIGN_OR_RETURN(flush_numbers_, HostNumbers::create(shape_.device, patterns_of(shape_)));
    std::vector<Event> events;
    for (int32_t number = 0; number < shape_.desc.layers; ++number) {
      PKV_ASSIGN_OR_RETURN(Event event, Event::create(shape_.device));
      events.push_back(std::move(event));
    }
    flushed_ = std::move(events);
    awaits_flush_.assign(flushed_.size(), false);
  }
  const auto exchange = [&] {
    if (!is_apart) return;
    std::swap(pools_->numbers, flush_numbers_);
    std::swap(pools_->encode_scratch, flush_scratch_);
    const bool holds = !pools_->records->is_holding();
    pools_->records->hold(holds);
    if (pools_->recent != nullptr) pools_->recent->hold(holds);
  };
  exchange();
  absl::Status status;
  for (std::size_t number = 0; number < layers_.size(); ++number) {
    Layer& layer = *layers_[number];
    for (int32_t sequence = 0; status.ok() && sequence < shape_.desc.sequences; ++sequence) {
      if (slots_[static_cast<std::size_t>(sequence)].is_used) {
        status = within_memory([&] { return layer.flush(stream, sequence); });
      }
    }
    if (!is_apart) continue;
    status.Update(layer.settle(stream));
    status.Update(flushed_[number].record(stream));
    awaits_flush_[number] = true;
  }
  exchange();
  if (!is_apart) return end(stream, status);
  has_last_ = true;
  return status;
}

}  // namespace pkv
