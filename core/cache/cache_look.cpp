// Looking into a cache: records, rows, sums, counts, bytes.
#include <algorithm>
#include <array>
#include <cstddef>
#include <vector>

#include "core/base/status.h"
#include "core/base/text.h"
#include "core/cache/cache.h"
#include "core/format/records.h"
#include "core/index/record_planes.h"
#include "core/pipeline/checks.h"
#include "core/runtime/json_writer.h"

namespace pkv {
namespace {

constexpr int64_t kExportBytes = 1 << 20;  // of records, staged on the device at a time

// A contiguous host [h, count, width] of the cache's dtype.
absl::StatusOr<TensorView> check_host(const CacheShape& shape, std::string_view name,
                                      const pkv_tensor& tensor, int64_t count, int64_t width) {
  const pkv_dtype dtype[] = {shape.desc.dtype};
  const pkv_device_type types[] = {PKV_DEVICE_CPU};
  PKV_ASSIGN_OR_RETURN(TensorView view,
                       TensorView::check(name, &tensor,
                                         {exactly("h", shape.geometry.kv_heads),
                                          exactly("count", count), exactly("width", width)},
                                         dtype, Access::kOutput));
  PKV_RETURN_IF_ERROR(check_device(name, tensor, types, 0));
  return view;
}

}  // namespace

absl::Status Cache::export_sync(const Stream& stream, int32_t number, int32_t sequence,
                                int32_t kv_head, int64_t begin, int64_t count,
                                const pkv_records& out) {
  const std::lock_guard lock(mutex_);
  PKV_RETURN_IF_ERROR(check_layer(number));
  PKV_RETURN_IF_ERROR(check_slot(sequence));
  const pkv_geometry& g = shape_.geometry;
  const int64_t encoded = layer(number).state(sequence).encoded;
  PKV_RETURN_IF_ERROR(check_index("kv_head", kv_head, 0, int64_t{g.kv_heads} - 1));
  PKV_RETURN_IF_ERROR(check_index("begin", begin, 0, encoded));
  PKV_RETURN_IF_ERROR(check_index("count", count, 0, encoded - begin));
  PKV_RETURN_IF_ERROR(check_planes(g, out, count));
  PKV_RETURN_IF_ERROR(begin_sync(stream));
  if (count == 0) return absl::OkStatus();
  const int64_t piece = std::max<int64_t>(1, kExportBytes / format::record_bytes(g, 1));
  PKV_ASSIGN_OR_RETURN(const StagedRecords staged,
                       StagedRecords::create(shape_.device, g, std::min(piece, count)));
  const int64_t row = int64_t{sequence} * g.kv_heads + kv_head;
  for (int64_t done = 0; done < count; done += piece) {
    const int64_t tokens = std::min(piece, count - done);
    PKV_RETURN_IF_ERROR(
        staged.export_row(stream, layer(number).store(), row, begin + done, tokens));
    PKV_RETURN_IF_ERROR(
        staged.copy_out(stream, planes_at(g, out, begin, begin + done), begin + done, tokens));
    PKV_RETURN_IF_ERROR(stream.sync());
  }
  return absl::OkStatus();
}

absl::Status Cache::rows_sync(const Stream& stream, int32_t number, int32_t sequence, int64_t begin,
                              int64_t count, const pkv_rows& out) {
  const std::lock_guard lock(mutex_);
  PKV_RETURN_IF_ERROR(check_layer(number));
  PKV_RETURN_IF_ERROR(check_slot(sequence));
  const SequenceState& state = layer(number).state(sequence);
  PKV_RETURN_IF_ERROR(check_index("begin", begin, 0, state.tokens));
  PKV_RETURN_IF_ERROR(check_index("count", count, 0, state.tokens - begin));
  std::optional<TensorView> keys;
  std::optional<TensorView> values;
  if (is_present(out.keys)) {
    PKV_ASSIGN_OR_RETURN(keys,
                         check_host(shape_, "rows.keys", out.keys, count, shape_.key_elements));
  }
  if (is_present(out.values)) {
    if (shape_.value_elements == 0) {
      return absl::InvalidArgumentError(
          "rows.values are given, accepted: none unless v_source=own");
    }
    PKV_ASSIGN_OR_RETURN(
        values, check_host(shape_, "rows.values", out.values, count, shape_.value_elements));
  }
  PKV_RETURN_IF_ERROR(begin_sync(stream));
  // Row by row: a host that is no device of the backend is reached by copies only.
  const int64_t bytes = shape_.element_bytes;
  for (int64_t done = 0; done < count;) {
    const RowRun run = layer(number).run_at(state, begin + done, count - done);
    for (int64_t token = 0; token < run.tokens; ++token) {
      for (int64_t head = 0; head < shape_.geometry.kv_heads; ++head) {
        const auto copy = [&](const TensorView& to, const std::byte* from, int64_t head_stride,
                              int64_t token_stride) {
          return stream.copy(static_cast<std::byte*>(to.origin()) +
                                 to.element_offset(head, done + token, 0) * bytes,
                             from + (head * head_stride + token * token_stride) * bytes,
                             to.extent(2) * bytes);
        };
        if (keys) {
          PKV_RETURN_IF_ERROR(copy(*keys, run.keys, run.key_head_stride, run.key_token_stride));
        }
        if (values) {
          PKV_RETURN_IF_ERROR(
              copy(*values, run.values, run.value_head_stride, run.value_token_stride));
        }
      }
    }
    done += run.tokens;
  }
  return stream.sync();
}

absl::Status Cache::sums_sync(const Stream& stream, int32_t number, int32_t sequence,
                              double* value_sums, int64_t* good_counts, int32_t* occupancy) {
  const std::lock_guard lock(mutex_);
  PKV_RETURN_IF_ERROR(check_layer(number));
  PKV_RETURN_IF_ERROR(check_slot(sequence));
  const Layer& layer = this->layer(number);
  if (!layer.is_sparse()) {
    return absl::FailedPreconditionError(
        str_cat("layer ", number, " attends in full, accepted: sparse layers"));
  }
  if (occupancy != nullptr && shape_.occupancy_bytes == 0) {
    return absl::InvalidArgumentError("occupancy is given, accepted: NULL with vote=graded");
  }
  PKV_RETURN_IF_ERROR(begin_sync(stream));
  const auto copy = [&](void* to, const void* sums, int64_t bytes) {
    if (to == nullptr) return absl::OkStatus();
    return stream.copy(to, static_cast<const std::byte*>(sums) + sequence * bytes, bytes);
  };
  PKV_RETURN_IF_ERROR(copy(value_sums, layer.value_sums(), shape_.value_sum_bytes));
  PKV_RETURN_IF_ERROR(copy(good_counts, layer.good_counts(), shape_.good_count_bytes));
  PKV_RETURN_IF_ERROR(copy(occupancy, layer.occupancy(), shape_.occupancy_bytes));
  return stream.sync();
}

absl::StatusOr<pkv_cache_stats> Cache::stats_sync(const Stream& stream) {
  const std::lock_guard lock(mutex_);
  PKV_RETURN_IF_ERROR(begin_sync(stream));
  pkv_cache_stats stats{};
  stats.struct_size = sizeof stats;
  const int64_t heads = shape_.geometry.kv_heads;
  for (const Slot& slot : slots_) stats.sequences += slot.is_used ? 1 : 0;
  for (const auto& layer : layers_) {
    std::vector<int64_t> good;
    if (layer->is_sparse()) {
      PKV_ASSIGN_OR_RETURN(good,
                           read_back(stream, layer->good_counts(), shape_.desc.sequences * heads));
    }
    for (int32_t sequence = 0; sequence < shape_.desc.sequences; ++sequence) {
      const SequenceState& state = layer->state(sequence);
      stats.tokens += state.tokens;
      if (state.encoded == 0) continue;
      for (int64_t head = 0; head < heads; ++head) {
        stats.bad_keys += state.encoded - good[static_cast<std::size_t>(sequence * heads + head)];
      }
    }
  }
  stats.appended = appended_;
  stats.encoded = pools_->encoded;
  stats.fits = pools_->fits;
  stats.steps = steps_;
  for (const PagePool* pool :
       {pools_->sinks.get(), pools_->rows.get(), pools_->records.get(), pools_->queries.get()}) {
    if (pool == nullptr) continue;
    stats.shared_pages += pool->shared();
    stats.allocated_bytes += pool->allocated_bytes();
  }
  if (pools_->recent != nullptr) stats.allocated_bytes += pools_->recent->allocated_bytes();
  stats.bytes_per_key = format::bytes_per_key(shape_.geometry);
  return stats;
}

absl::StatusOr<pkv_cache_usage> Cache::usage() const {
  const std::lock_guard lock(mutex_);
  pkv_cache_usage usage{};
  usage.struct_size = sizeof usage;
  const auto held = [](const std::unique_ptr<PagePool>& pool) {
    return pool == nullptr ? 0 : pool->used() * pool->page_bytes();
  };
  usage.row_pages = held(pools_->sinks) + held(pools_->rows);
  if (pools_->records) {
    usage.occupancy = pools_->records->used() * shape_.page_occupancy_bytes();
  }
  usage.record_pages = held(pools_->records) - usage.occupancy;
  usage.samples = held(pools_->queries);
  usage.tables = pools_->numbers->bytes() + sink_logits_.bytes() + pools_->faults.bytes();
  const int64_t heads = shape_.geometry.kv_heads;
  const int64_t page_tokens = shape_.desc.page_tokens;
  for (const auto& layer : layers_) {
    usage.tables += layer->table_bytes();
    usage.occupancy += layer->occupancy_bytes();
    usage.codecs += layer->codec_bytes();
    for (int32_t sequence = 0; sequence < shape_.desc.sequences; ++sequence) {
      const SequenceState& state = layer->state(sequence);
      usage.partly += (static_cast<int64_t>(state.records.size()) * page_tokens - state.encoded) *
                      heads * shape_.record_row_bytes / page_tokens;
      if (layer->has_pool()) continue;
      const int64_t places = static_cast<int64_t>(state.rows.size()) * page_tokens +
                             (state.sink ? shape_.desc.sink : 0);
      const int64_t held_rows = std::max<int64_t>(0, state.tokens - shape_.desc.sink) +
                                (state.sink ? std::min(state.tokens, shape_.desc.sink) : 0);
      usage.partly += (places - held_rows) * heads * shape_.token_bytes();
    }
  }
  usage.scratch = scratch_.bytes() + pools_->encode_scratch.bytes() + flush_scratch_.bytes() +
                  (flush_numbers_ ? flush_numbers_->bytes() : 0);
  usage.recent_rows = pools_->recent != nullptr ? pools_->recent->allocated_bytes() : 0;
  usage.total = usage.row_pages + usage.record_pages + usage.tables + usage.occupancy +
                usage.codecs + usage.samples + usage.scratch;
  return usage;
}

std::string Cache::describe() const {
  const auto bytes = usage();
  const std::lock_guard lock(mutex_);
  const pkv_cache_desc& d = shape_.desc;
  JsonWriter json;
  json.open('{').key("shape").open('{');
  json.field("layers", d.layers).field("sequences", d.sequences).field("kv_heads", d.kv_heads);
  json.field("query_heads", d.query_heads).field("dtype", dtype_name(d.dtype));
  json.field("head_dim", shape_.geometry.head_dim).field("value_dim", shape_.geometry.value_dim);
  json.close('}').key("limits").open('{');
  json.field("capacity", d.capacity).field("max_bytes", d.max_bytes);
  json.close('}').key("regions").open('{');
  json.field("sink", d.sink).field("local", d.local).field("interval", d.interval);
  json.field("dense_below", d.dense_below).field("refits", d.refits != 0);
  json.field("deferred", d.deferred != 0).field("fit_positions", d.fit_positions);
  json.close('}').key("pages").open('{');
  json.field("page_tokens", d.page_tokens).field("row_page_bytes", shape_.row_page_bytes);
  json.field("record_page_bytes", shape_.record_page_bytes);
  json.field("rows_memory", d.rows_memory == PKV_ALLOC_DEVICE ? "device" : "host");
  json.field("tables", is_on_device() ? "device" : "host");
  json.close('}').key("options").open('{');
  for (const OptionInfo& option : option_table()) {
    const auto value = shape_.config.get(option.name);
    if (value.ok()) json.field(option.name, std::string_view(**value));
  }
  json.close('}').key("usage").open('{');
  if (bytes.ok()) {
    json.field("total", bytes->total).field("row_pages", bytes->row_pages);
    json.field("record_pages", bytes->record_pages).field("tables", bytes->tables);
    json.field("codecs", bytes->codecs).field("samples", bytes->samples);
    json.field("scratch", bytes->scratch).field("partly", bytes->partly);
    json.field("recent_rows", bytes->recent_rows);
  }
  json.close('}').field("backend", shape_.device->backend().name);
  json.field("has_fused_step", shape_.device->backend().step.run != nullptr).close('}');
  return json.text();
}

}  // namespace pkv
