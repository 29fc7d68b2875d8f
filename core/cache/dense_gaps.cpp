#include "core/cache/dense_gaps.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <limits>
#include <utility>

#include "core/base/dtype.h"
#include "core/base/status.h"
#include "core/format/seen.h"
#include "core/pipeline/merge.h"
#include "core/pipeline/run_stage.h"

namespace pkv {
namespace {

// A dense tensor of the device's memory.
template <std::size_t kAxes>
pkv_tensor tensor_of(const Device& device, void* data, pkv_dtype dtype,
                     const std::array<int64_t, kAxes>& shape) {
  pkv_tensor tensor{};
  tensor.data = data;
  tensor.device_type = device.info().device_type;
  tensor.device_id = device.info().device_id;
  tensor.ndim = static_cast<int32_t>(kAxes);
  tensor.dtype = dtype;
  tensor.shape = shape.data();
  return tensor;
}

}  // namespace

DenseGaps::DenseGaps(const CacheShape& shape, const Layer& layer, const StepCall& call)
    : shape_(shape), layer_(layer), call_(call) {
  if (call.output == nullptr) return;
  int64_t first = 0;
  for (std::size_t i = 0; i < call.sequences.size(); ++i) {
    const Run run{call.sequences[i], first, call.counts[i]};
    first += run.count;
    if (run.count == 0 || !sees_bad(run)) continue;
    without_dense_.resize(call.sequences.size());
    without_dense_[i] = 1;
    runs_.push_back(run);
  }
}

int64_t DenseGaps::keys_of(const SequenceState& state) const {
  return layer_.keys_by_records(state, call_.is_exact);
}

int64_t DenseGaps::first_seen(int64_t position) const {
  return format::first_seen(layer_.window(), position);
}

bool DenseGaps::sees_bad(const Run& run) const {
  const SequenceState& state = layer_.state(run.sequence);
  const auto from = [&](int64_t position) {
    return std::lower_bound(state.bad.begin(), state.bad.end(), position,
                            [](const BadToken& bad, int64_t p) { return bad.position < p; });
  };
  const int64_t first = first_seen(state.tokens - run.count);
  const int64_t sink = shape_.desc.sink;
  return from(first) != from(std::max(first, sink)) ||
         from(std::max(first, sink + keys_of(state))) != state.bad.end();
}

absl::StatusOr<StepCall> DenseGaps::other_parts() {
  const int64_t heads = shape_.desc.query_heads;
  const int64_t width = shape_.geometry.value_dim;
  const auto count = static_cast<std::size_t>(call_.tokens * heads);
  for (Results* results : {&others_, &dense_}) {
    PKV_ASSIGN_OR_RETURN(results->output,
                         Buffer::create(shape_.device, PKV_MEMORY_DEVICE,
                                        call_.tokens * heads * width * int64_t{sizeof(float)}));
    PKV_ASSIGN_OR_RETURN(results->lse,
                         Buffer::create(shape_.device, PKV_MEMORY_DEVICE,
                                        call_.tokens * heads * int64_t{sizeof(float)}));
    std::fill_n(results->output.as<float>(), count * static_cast<std::size_t>(width), 0.0F);
    std::fill_n(results->lse.as<float>(), count, -std::numeric_limits<float>::infinity());
  }
  const std::array<int64_t, 3> shape = {call_.tokens, heads, width};
  const pkv_tensor output = tensor_of(*shape_.device, others_.output.data(), PKV_DTYPE_F32, shape);
  PKV_ASSIGN_OR_RETURN(
      others_output_,
      TensorView::check("output", &output, {at_least("n", 0), at_least("hq", 0), at_least("dv", 0)},
                        kFloatTypes));
  StepCall call = call_;
  call.output = &*others_output_;
  call.lse = others_.lse.as<float>();
  call.without_dense = without_dense_;
  return call;
}

absl::StatusOr<DenseGaps::Rows> DenseGaps::gather(const Run& run, int32_t head) const {
  const SequenceState& state = layer_.state(run.sequence);
  const int64_t zone_begin = shape_.desc.sink;
  const int64_t zone_end = zone_begin + keys_of(state);
  const int64_t key_bytes = shape_.geometry.head_dim * shape_.element_bytes;
  const bool has_values = shape_.value_elements > 0;
  const int64_t value_bytes = has_values ? shape_.geometry.value_dim * shape_.element_bytes : 0;
  Rows rows;
  auto bad = state.bad.begin();
  for (int64_t p = first_seen(state.tokens - run.count); p < state.tokens; ++p) {
    if (p >= zone_begin && p < zone_end) p = zone_end;
    if (p >= state.tokens) break;
    const auto before = [](const BadToken& a, const std::pair<int64_t, int32_t>& b) {
      return std::pair(a.position, a.head) < b;
    };
    bad = std::lower_bound(bad, state.bad.end(), std::pair(p, head), before);
    const bool is_bad = bad != state.bad.end() && bad->position == p && bad->head == head;
    if (!is_bad) rows.positions.push_back(p);
  }
  const auto tokens = static_cast<int64_t>(rows.positions.size());
  PKV_ASSIGN_OR_RETURN(rows.memory, Buffer::create(shape_.device, PKV_MEMORY_DEVICE,
                                                   tokens * (key_bytes + value_bytes)));
  auto* keys = rows.memory.as<std::byte>();
  std::byte* values = keys + tokens * key_bytes;
  rows.keys = keys;
  rows.values = has_values ? values : keys;
  for (const int64_t position : rows.positions) {
    const RowRun from = layer_.run_at(state, position, 1);
    std::memcpy(keys, from.keys + head * from.key_head_stride * shape_.element_bytes,
                static_cast<std::size_t>(key_bytes));
    keys += key_bytes;
    if (!has_values) continue;
    std::memcpy(values, from.values + head * from.value_head_stride * shape_.element_bytes,
                static_cast<std::size_t>(value_bytes));
    values += value_bytes;
  }
  return rows;
}

absl::Status DenseGaps::attend(const Stream& stream, const Run& run, int32_t head) {
  const Device& device = *shape_.device;
  const SequenceState& state = layer_.state(run.sequence);
  PKV_ASSIGN_OR_RETURN(const Rows rows, gather(run, head));
  const auto tokens = static_cast<int64_t>(rows.positions.size());
  if (tokens == 0) return absl::OkStatus();

  // What a query sees of them is without gaps.
  std::vector<int64_t> starts, lengths;
  int64_t longest = 0;
  for (int64_t t = 0; t < run.count; ++t) {
    const int64_t position = state.tokens - run.count + t;
    const auto index_of = [&](int64_t p) {
      return std::lower_bound(rows.positions.begin(), rows.positions.end(), p) -
             rows.positions.begin();
    };
    starts.push_back(index_of(first_seen(position)));
    lengths.push_back(index_of(position + 1) - starts.back());
    longest = std::max(longest, lengths.back());
  }
  if (longest == 0) return absl::OkStatus();
  const std::vector<int64_t> no_keys(starts.size(), 0);
  const std::vector<int32_t> sequences(starts.size(), 0);

  pkv_geometry geometry = shape_.geometry;
  geometry.kv_heads = 1;
  const int32_t group = shape_.desc.query_heads / shape_.geometry.kv_heads;
  const int64_t set = keys_of(state) > 0 ? state.set->index() : 0;
  const int64_t at = set * shape_.geometry.kv_heads + head;
  pkv_attend_args args{};
  args.struct_size = sizeof args;
  args.query_heads = group;
  args.tail = PKV_TAIL_DROP;
  args.scale = shape_.step.scale;
  args.soft_cap = shape_.desc.soft_cap;
  args.codec = layer_.codec();
  args.codec.geometry = &geometry;
  for (const float** numbers : {&args.codec.center, &args.codec.balance, &args.codec.inv_balance}) {
    if (*numbers != nullptr) *numbers += at * geometry.head_dim;
  }
  if (args.codec.value_center != nullptr) args.codec.value_center += at * geometry.value_dim;
  args.batch.batch = static_cast<int32_t>(run.count);
  args.batch.sequences = sequences.data();
  args.batch.lengths = no_keys.data();
  args.batch.max_length = 1;

  const TensorView& query = *call_.query;
  const int64_t first_head = int64_t{head} * group;
  const std::array<int64_t, 3> query_shape = {run.count, group, geometry.head_dim};
  const std::array<int64_t, 3> query_strides = {query.stride(0), query.stride(1), query.stride(2)};
  args.queries =
      tensor_of(device,
                static_cast<std::byte*>(query.origin()) +
                    query.element_offset(run.first, first_head, 0) * query.element_bytes(),
                query.dtype(), query_shape);
  args.queries.strides = query_strides.data();

  const std::array<int64_t, 4> key_shape = {run.count, 1, longest, geometry.head_dim};
  const std::array<int64_t, 4> value_shape = {run.count, 1, longest, geometry.value_dim};
  pkv_part& part = args.parts[0];
  args.part_count = 1;
  part.keys = tensor_of(device, nullptr, shape_.desc.dtype, key_shape);
  part.values = tensor_of(device, nullptr, shape_.desc.dtype, value_shape);
  part.starts = starts.data();
  part.lengths = lengths.data();
  const auto pages_of = [&](const void* const& page, int64_t width) {
    pkv_pages pages{};
    pages.table = &page;
    pages.table_stride = 1;
    pages.page_tokens = tokens;
    pages.token_bytes = width * shape_.element_bytes;
    pages.head_bytes = tokens * pages.token_bytes;
    return pages;
  };
  part.key_pages = pages_of(rows.keys, geometry.head_dim);
  part.value_pages =
      pages_of(rows.values, shape_.value_elements > 0 ? geometry.value_dim : geometry.head_dim);

  const int64_t heads = shape_.desc.query_heads;
  const std::array<int64_t, 3> output_shape = {run.count, group, geometry.value_dim};
  const std::array<int64_t, 3> output_strides = {heads * geometry.value_dim, geometry.value_dim, 1};
  args.output = tensor_of(
      device, dense_.output.as<float>() + (run.first * heads + first_head) * geometry.value_dim,
      PKV_DTYPE_F32, output_shape);
  args.output.strides = output_strides.data();
  std::vector<float> lse(static_cast<std::size_t>(run.count * group));
  args.lse = lse.data();
  PKV_RETURN_IF_ERROR(run_stage_sync(stream, "attend", device.backend().attend, args));
  for (int64_t t = 0; t < run.count; ++t) {
    std::copy_n(lse.data() + t * group, group,
                dense_.lse.as<float>() + (run.first + t) * heads + first_head);
  }
  return absl::OkStatus();
}

absl::Status DenseGaps::finish(const Stream& stream) {
  PKV_RETURN_IF_ERROR(stream.sync());
  for (const Run& run : runs_) {
    for (int32_t head = 0; head < shape_.geometry.kv_heads; ++head) {
      PKV_RETURN_IF_ERROR(attend(stream, run, head));
    }
  }
  const std::array<int64_t, 3> shape = {call_.tokens, shape_.desc.query_heads,
                                        shape_.geometry.value_dim};
  const auto tensor = [&](const Results& results) {
    return tensor_of(*shape_.device, results.output.data(), PKV_DTYPE_F32, shape);
  };
  const pkv_tensor outputs[] = {tensor(others_), tensor(dense_)};
  const float* const lses[] = {others_.lse.as<float>(), dense_.lse.as<float>()};
  return merge(stream, 2, outputs, lses, call_.output->tensor(), call_.lse);
}

}  // namespace pkv
