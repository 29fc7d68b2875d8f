// Tokens and steps of a cache: what each call may be given, then layer and step.
#include <algorithm>
#include <cstddef>
#include <utility>

#include "core/base/status.h"
#include "core/base/text.h"
#include "core/cache/cache.h"
#include "core/cache/dense_gaps.h"
#include "core/format/candidates.h"
#include "core/pipeline/checks.h"

namespace pkv {
namespace {

constexpr int64_t kMaxStepTokens = 65535;

}  // namespace

absl::Status Cache::check_batch(const pkv_cache_batch& batch) {
  PKV_RETURN_IF_ERROR(check_range("batch", batch.batch, 0, shape_.desc.sequences));
  PKV_RETURN_IF_ERROR(check_pointer("sequences", batch.sequences, batch.batch));
  batch_.sequences.clear();
  batch_.counts.clear();
  batch_.tokens = 0;
  for (int32_t i = 0; i < batch.batch; ++i) {
    const int32_t sequence = batch.sequences[i];
    PKV_RETURN_IF_ERROR(check_slot(sequence));
    if (std::find(batch_.sequences.begin(), batch_.sequences.end(), sequence) !=
        batch_.sequences.end()) {
      return absl::InvalidArgumentError(
          str_cat("sequences[", i, "]=", sequence, " occurs twice, accepted: all different"));
    }
    const int64_t count = batch.counts == nullptr ? 1 : batch.counts[i];
    PKV_RETURN_IF_ERROR(check_range(str_cat("counts[", i, "]"), count, 0, shape_.desc.capacity));
    batch_.sequences.push_back(sequence);
    batch_.counts.push_back(count);
    batch_.tokens += count;
  }
  return absl::OkStatus();
}

absl::Status Cache::check_input(int32_t number, const pkv_tensor& keys, const pkv_tensor* values,
                                const pkv_tensor* queries) {
  const pkv_geometry& g = shape_.geometry;
  const int64_t n = batch_.tokens;
  if (layer(number).has_pool()) {
    return absl::FailedPreconditionError(str_cat(
        "layer ", number, " has its rows in the caller's pages, accepted: pkv_cache_append_pages"));
  }
  const pkv_dtype dtype[] = {shape_.desc.dtype};
  PKV_ASSIGN_OR_RETURN(
      tensors_.keys,
      check_tensor(*shape_.device, "keys", keys,
                   {exactly("n", n), exactly("h", g.kv_heads), exactly("d", g.head_dim)}, dtype));
  tensors_.values.reset();
  if (shape_.value_elements > 0) {
    if (values == nullptr) {
      return absl::InvalidArgumentError("values=NULL, accepted: [n, h, dv] with v_source=own");
    }
    PKV_ASSIGN_OR_RETURN(tensors_.values, check_tensor(*shape_.device, "values", *values,
                                                       {exactly("n", n), exactly("h", g.kv_heads),
                                                        exactly("dv", g.value_dim)},
                                                       dtype));
  } else if (values != nullptr) {
    return absl::InvalidArgumentError("values are given, accepted: NULL unless v_source=own");
  }
  tensors_.queries.reset();
  if (queries != nullptr) {
    PKV_ASSIGN_OR_RETURN(tensors_.queries,
                         check_tensor(*shape_.device, "queries", *queries,
                                      {exactly("n", n), exactly("hq", shape_.desc.query_heads),
                                       exactly("d", g.head_dim)},
                                      kFloatTypes));
  }
  for (std::size_t i = 0; i < batch_.sequences.size(); ++i) {
    const int64_t held = layer(number).state(batch_.sequences[i]).tokens;
    const int64_t room = shape_.desc.capacity - held;
    if (batch_.counts[i] <= room) continue;
    return absl::ResourceExhaustedError(str_cat(
        "layer ", number, ", sequence ", batch_.sequences[i], ": needs ", batch_.counts[i],
        " tokens, has room for ", room, " (capacity ", shape_.desc.capacity, ", held ", held, ")"));
  }
  return absl::OkStatus();
}

// The first queries decide about their dtype.
absl::Status Cache::prepare_queries() {
  if (!tensors_.queries) return absl::OkStatus();
  const TensorView& queries = *tensors_.queries;
  CachePools& pools = *pools_;
  if (pools.query_type != 0 && pools.query_type != queries.dtype()) {
    return absl::InvalidArgumentError(str_cat("queries: dtype ", dtype_name(queries.dtype()),
                                              ", accepted: ", dtype_name(pools.query_type),
                                              ", that of the first queries of this cache"));
  }
  if (pools.queries != nullptr) return absl::OkStatus();
  const int64_t bytes =
      int64_t{shape_.desc.query_heads} * shape_.geometry.head_dim * queries.element_bytes();
  pools.queries = std::make_unique<PagePool>(
      shape_.device, PKV_MEMORY_HOST, QueryLog::kBlock * bytes, "kept queries", &pools.budget);
  pools.query_type = queries.dtype();
  pools.query_bytes = bytes;
  return absl::OkStatus();
}

absl::Status Cache::append_checked(const Stream& stream, int32_t number) {
  PKV_RETURN_IF_ERROR(prepare_queries());
  Layer::Input input{};
  input.sequences = batch_.sequences;
  input.counts = batch_.counts;
  input.keys = tensors_.keys ? &*tensors_.keys : nullptr;
  input.values = tensors_.values ? &*tensors_.values : nullptr;
  input.queries = tensors_.queries ? &*tensors_.queries : nullptr;
  PKV_RETURN_IF_ERROR(layer(number).append(stream, input));
  appended_ += batch_.tokens;
  return absl::OkStatus();
}

absl::Status Cache::append(const Stream& stream, int32_t number, const pkv_cache_batch& batch,
                           const pkv_tensor& keys, const pkv_tensor* values,
                           const pkv_tensor* queries) {
  const std::lock_guard lock(mutex_);
  PKV_RETURN_IF_ERROR(check_layer(number));
  PKV_RETURN_IF_ERROR(check_batch(batch));
  PKV_RETURN_IF_ERROR(check_input(number, keys, values, queries));
  PKV_RETURN_IF_ERROR(begin(stream, number, Capture::kAllowed));
  if (is_captured_) return end(stream, append_captured(stream, number, false));
  const absl::Status appended = append_checked(stream, number);
  return end_append(stream, number, appended);
}

// A device that fails behind an append, and is waited for in vain, has it taken back.
absl::Status Cache::end_append(const Stream& stream, int32_t number, const absl::Status& status) {
  const absl::Status ended = end(stream, status);
  if (!status.ok() || ended.ok()) return ended;
  for (std::size_t i = 0; i < batch_.sequences.size(); ++i) {
    const int32_t sequence = batch_.sequences[i];
    layer(number).take_back(stream, sequence,
                            layer(number).state(sequence).tokens - batch_.counts[i]);
  }
  return ended;
}

absl::StatusOr<int64_t> Cache::candidates(int64_t tokens) const {
  PKV_RETURN_IF_ERROR(check_range("tokens", tokens, 0, shape_.desc.capacity));
  const int64_t zone = std::max<int64_t>(1, zone_of(shape_.rules, tokens));
  return format::largest_candidate_count(shape_.step.rule, zone);
}

absl::Status Cache::check_query(const pkv_tensor& query, const pkv_tensor* output) {
  const int64_t n = batch_.tokens;
  PKV_RETURN_IF_ERROR(check_range("n (query tokens of the batch)", n, 0, kMaxStepTokens));
  PKV_ASSIGN_OR_RETURN(tensors_.query,
                       check_tensor(*shape_.device, "query", query,
                                    {exactly("n", n), exactly("hq", shape_.desc.query_heads),
                                     exactly("d", shape_.geometry.head_dim)},
                                    kFloatTypes));
  tensors_.output.reset();
  if (output == nullptr) return absl::OkStatus();
  PKV_ASSIGN_OR_RETURN(tensors_.output,
                       check_tensor(*shape_.device, "output", *output,
                                    {exactly("n", n), exactly("hq", shape_.desc.query_heads),
                                     exactly("dv", shape_.geometry.value_dim)},
                                    kFloatTypes, Access::kOutput));
  return check_apart("output", *tensors_.output, "query", *tensors_.query);
}

absl::Status Cache::check_attention(int32_t number, const pkv_cache_attention& attention,
                                    const pkv_cache_hits* hits, bool appends) {
  if (shape_.geometry.v_source == PKV_V_SOURCE_NONE) {
    return absl::InvalidArgumentError("v_source=none, accepted: own or k_prefix, to attend");
  }
  if ((attention.flags & ~uint32_t{PKV_CACHE_EXACT}) != 0) {
    return absl::InvalidArgumentError(
        str_cat("flags=", attention.flags, ", accepted: 0 or 1 (PKV_CACHE_EXACT)"));
  }
  const bool is_exact = attention.flags != 0;
  const bool is_sparse = layer(number).is_sparse();
  if (hits != nullptr && (is_exact || !is_sparse)) {
    return absl::InvalidArgumentError(
        str_cat("hits are given, accepted: NULL ",
                is_exact ? "with PKV_CACHE_EXACT" : "in a layer that attends in full"));
  }
  PKV_RETURN_IF_ERROR(check_query(attention.query, &attention.output));
  for (std::size_t i = 0; i < batch_.sequences.size(); ++i) {
    const std::string name = str_cat("counts[", i, "]");
    const int64_t held = layer(number).state(batch_.sequences[i]).tokens;
    if (!appends) PKV_RETURN_IF_ERROR(check_index(name, batch_.counts[i], 0, held));
    if (is_exact || !is_sparse) continue;
    PKV_RETURN_IF_ERROR(check_range(name, batch_.counts[i], 0, shape_.desc.local + 1));
  }
  return absl::OkStatus();
}

StepCall Cache::step_call(const pkv_cache_attention& attention, const pkv_cache_hits* hits,
                          bool appends) const {
  StepCall call{};
  call.sequences = batch_.sequences;
  call.counts = batch_.counts;
  call.tokens = batch_.tokens;
  call.query = &*tensors_.query;
  call.output = &*tensors_.output;
  call.lse = attention.lse;
  call.is_exact = attention.flags != 0;
  call.hits = hits;
  call.appends = appends;
  call.is_captured = is_captured_;
  return call;
}

// What a step after the append will need, so that it is refused before anything is appended.
absl::Status Cache::reserve_for(const Stream& stream, int32_t number, const StepCall& call) {
  int64_t longest = 0;
  int64_t dense = 0;
  for (std::size_t i = 0; i < batch_.sequences.size(); ++i) {
    const SequenceState& state = layer(number).state(batch_.sequences[i]);
    const int64_t tokens = state.tokens + (call.appends ? batch_.counts[i] : 0);
    const int64_t zone = zone_of(shape_.rules, tokens);
    if (zone >= first_fit(shape_.rules)) longest = std::max(longest, zone);
    dense = std::max(dense, tokens);
  }
  return reserve_step(shape_, *pools_, layer(number), stream, call, longest, dense, scratch_);
}

absl::Status Cache::attend_checked(const Stream& stream, int32_t number,
                                   const pkv_cache_attention& attention, pkv_cache_hits* hits,
                                   bool appends) {
  if (is_captured_) PKV_RETURN_IF_ERROR(check_captured(number, appends));
  const StepCall call = step_call(attention, hits, appends);
  const auto step = [&](const StepCall& part) {
    return run_step(shape_, *pools_, layer(number), stream, part, sink_logits_.as<float>(),
                    scratch_);
  };
  DenseGaps gaps(shape_, layer(number), call);
  if (gaps.is_empty()) {
    PKV_RETURN_IF_ERROR(step(call));
  } else {
    const WaitAtEnd parts(stream);  // whose results lie in memory of the gaps
    PKV_ASSIGN_OR_RETURN(const StepCall others, gaps.other_parts());
    PKV_RETURN_IF_ERROR(step(others));
    PKV_RETURN_IF_ERROR(gaps.finish(stream));
  }
  if (hits != nullptr) hits->stamp = layer(number).stamp();
  if (is_captured_) return absl::OkStatus();
  steps_ += batch_.tokens;
  return absl::OkStatus();
}

absl::Status Cache::attend(const Stream& stream, int32_t number, const pkv_cache_batch& batch,
                           const pkv_cache_attention& attention, pkv_cache_hits* hits) {
  const std::lock_guard lock(mutex_);
  PKV_RETURN_IF_ERROR(check_layer(number));
  PKV_RETURN_IF_ERROR(check_batch(batch));
  PKV_RETURN_IF_ERROR(check_attention(number, attention, hits, false));
  PKV_RETURN_IF_ERROR(begin(stream, number, Capture::kAllowed));
  return end(stream, attend_checked(stream, number, attention, hits, false));
}

absl::Status Cache::decode_step(const Stream& stream, int32_t number, const pkv_cache_batch& batch,
                                const pkv_tensor& keys, const pkv_tensor* values,
                                const pkv_cache_attention& attention, pkv_cache_hits* hits) {
  const std::lock_guard lock(mutex_);
  PKV_RETURN_IF_ERROR(check_layer(number));
  PKV_RETURN_IF_ERROR(check_batch(batch));
  PKV_RETURN_IF_ERROR(check_attention(number, attention, hits, true));
  PKV_RETURN_IF_ERROR(check_input(number, keys, values, &attention.query));
  PKV_RETURN_IF_ERROR(check_apart("output", *tensors_.output, "keys", *tensors_.keys));
  if (tensors_.values) {
    PKV_RETURN_IF_ERROR(check_apart("output", *tensors_.output, "values", *tensors_.values));
  }
  PKV_RETURN_IF_ERROR(begin(stream, number, Capture::kAllowed));
  const auto run = [&]() -> absl::Status {
    if (is_captured_) {
      PKV_RETURN_IF_ERROR(append_captured(stream, number, true));
      return attend_checked(stream, number, attention, hits, true);
    }
    PKV_RETURN_IF_ERROR(reserve_for(stream, number, step_call(attention, hits, true)));
    PKV_RETURN_IF_ERROR(append_checked(stream, number));
    const absl::Status attended =
        within_memory([&] { return attend_checked(stream, number, attention, hits, true); });
    if (attended.ok()) return attended;
    for (std::size_t i = 0; i < batch_.sequences.size(); ++i) {  // takes the tokens back
      const int32_t sequence = batch_.sequences[i];
      const int64_t tokens = layer(number).state(sequence).tokens - batch_.counts[i];
      const absl::Status cut = within_memory([&]() -> absl::Status {
        PKV_ASSIGN_OR_RETURN(Layer::Cut change,
                             layer(number).prepare_cut(stream, sequence, tokens));
        layer(number).cut(stream, change).IgnoreError();
        return absl::OkStatus();
      });
      if (!cut.ok()) layer(number).take_back(stream, sequence, tokens);
    }
    return attended;
  };
  if (is_captured_) return end(stream, run());
  const absl::Status status = run();
  return end_append(stream, number, status);
}

absl::Status Cache::retrieve(const Stream& stream, int32_t number, const pkv_cache_batch& batch,
                             const pkv_tensor& query, pkv_cache_hits& hits) {
  const std::lock_guard lock(mutex_);
  PKV_RETURN_IF_ERROR(check_layer(number));
  PKV_RETURN_IF_ERROR(check_batch(batch));
  PKV_RETURN_IF_ERROR(check_query(query, nullptr));
  if (!layer(number).is_sparse()) {
    return absl::FailedPreconditionError(
        str_cat("layer ", number, " attends in full, accepted: sparse layers"));
  }
  const int64_t rows = batch_.tokens * shape_.geometry.kv_heads;
  PKV_RETURN_IF_ERROR(check_pointer("hits.positions", hits.positions, rows * shape_.step.k));
  PKV_RETURN_IF_ERROR(check_pointer("hits.counts", hits.counts, rows));
  PKV_RETURN_IF_ERROR(begin(stream, number, Capture::kAllowed));
  if (is_captured_) {
    const absl::Status checked = check_captured(number, false);
    if (!checked.ok()) return end(stream, checked);
  }
  StepCall call{};
  call.is_captured = is_captured_;
  call.sequences = batch_.sequences;
  call.counts = batch_.counts;
  call.tokens = batch_.tokens;
  call.query = &*tensors_.query;
  call.hits = &hits;
  const absl::Status status =
      run_step(shape_, *pools_, layer(number), stream, call, nullptr, scratch_);
  if (status.ok()) hits.stamp = layer(number).stamp();
  return end(stream, status);
}

absl::Status Cache::reserve(const Stream& stream, int64_t tokens, int64_t total_tokens,
                            int64_t step_tokens) {
  const std::lock_guard lock(mutex_);
  PKV_RETURN_IF_ERROR(check_range("tokens", tokens, 0, shape_.desc.capacity));
  PKV_RETURN_IF_ERROR(check_range("total_tokens", total_tokens, tokens, INT64_MAX / 4096));
  PKV_RETURN_IF_ERROR(check_range("step_tokens", step_tokens, 0, kMaxStepTokens));
  PKV_RETURN_IF_ERROR(begin_sync(stream));
  // Pages of as many sequences as there may be, the last of each partly filled.
  const int64_t sequences = std::min<int64_t>(shape_.desc.sequences, total_tokens);
  const int64_t row_pages = total_tokens / shape_.desc.page_tokens + sequences;
  const int64_t layers = shape_.desc.layers;
  const int64_t sparse = std::count_if(layers_.begin(), layers_.end(),
                                       [](const auto& layer) { return layer->is_sparse(); });
  const int64_t rows = layers * row_pages - pools_->rows->used();
  const int64_t sinks = layers * sequences - pools_->sinks->used();
  const int64_t records = sparse * row_pages - pools_->records->used();
  int64_t needed = 0;
  for (const auto& [pool, pages] :
       {std::pair(pools_->rows.get(), rows), std::pair(pools_->sinks.get(), sinks),
        std::pair(pools_->records.get(), records)}) {
    needed += std::max<int64_t>(pages, 0) * pool->page_bytes();
  }
  if (const int64_t room = pools_->budget.limit - pools_->budget.used; needed > room) {
    return absl::ResourceExhaustedError(str_cat("needs ", needed, " bytes of pages, has room for ",
                                                room, " (max_bytes=", pools_->budget.limit,
                                                ", held ", pools_->budget.used, ")"));
  }
  PKV_RETURN_IF_ERROR(pools_->rows->reserve(rows));
  PKV_RETURN_IF_ERROR(pools_->sinks->reserve(sinks));
  if (pools_->recent != nullptr) {
    const int64_t recent = sequences * (shape_.most_recent_tokens() / shape_.desc.page_tokens + 2);
    PKV_RETURN_IF_ERROR(
        pools_->recent->reserve(sparse * std::min(row_pages, recent) - pools_->recent->used()));
  }
  for (const auto& layer : layers_) PKV_RETURN_IF_ERROR(layer->reserve(stream, tokens));
  PKV_RETURN_IF_ERROR(pools_->records->reserve(records));
  batch_.sequences.reserve(slots_.size());
  batch_.counts.reserve(slots_.size());
  PKV_RETURN_IF_ERROR(pools_->numbers->reserve(stream, 64 * step_tokens));
  pools_->reserved_tokens = std::max(pools_->reserved_tokens, tokens);
  pools_->reserved_step_tokens = std::max(pools_->reserved_step_tokens, step_tokens);
  if (step_tokens == 0) return end(stream, absl::OkStatus());
  // Any dtypes of query and output.
  const pkv_geometry& g = shape_.geometry;
  const int64_t query_shape[] = {step_tokens, shape_.desc.query_heads, g.head_dim};
  const int64_t output_shape[] = {step_tokens, shape_.desc.query_heads, g.value_dim};
  pkv_tensor query{};
  query.device_type = shape_.device->info().device_type;
  query.device_id = shape_.device->info().device_id;
  query.ndim = 3;
  const int64_t zone = zone_of(shape_.rules, tokens);
  for (const pkv_dtype query_type : kFloatTypes) {
    for (const pkv_dtype output_type : kFloatTypes) {
      pkv_tensor output = query;
      query.shape = query_shape;
      query.dtype = query_type;
      output.shape = output_shape;
      output.dtype = output_type;
      // Nothing is read: any address that is not NULL.
      query.data = output.data = pools_->numbers->identity();
      const std::initializer_list<Axis> axes = {at_least("n", 0), at_least("hq", 0),
                                                at_least("d", 0)};
      PKV_ASSIGN_OR_RETURN(const TensorView query_view,
                           TensorView::check("query", &query, axes, kFloatTypes));
      PKV_ASSIGN_OR_RETURN(const TensorView output_view,
                           TensorView::check("output", &output, axes, kFloatTypes));
      for (const auto& layer : layers_) {
        StepCall call{};
        call.tokens = step_tokens;
        call.query = &query_view;
        call.output = g.v_source == PKV_V_SOURCE_NONE ? nullptr : &output_view;
        PKV_RETURN_IF_ERROR(
            reserve_step(shape_, *pools_, *layer, stream, call, zone, tokens, scratch_));
      }
    }
  }
  return end(stream, absl::OkStatus());
}

}  // namespace pkv
