// fetch from a cache: rows of hits. docs/algorithm.md, section 7.
#include <algorithm>
#include <cstddef>
#include <optional>
#include <vector>

#include "core/base/status.h"
#include "core/base/text.h"
#include "core/cache/cache.h"
#include "core/pipeline/checks.h"

namespace pkv {
namespace {

absl::Status check_positions(const int32_t* positions, int64_t rows, int64_t k, int64_t first,
                             int64_t keys) {
  for (int64_t i = 0; i < rows * k; ++i) {
    if (positions[i] >= -1 && positions[i] < keys) continue;
    return absl::OutOfRangeError(str_cat("positions[token ", first, ", KV head ", i / k, ", slot ",
                                         i % k, "]=", positions[i], ", accepted: -1",
                                         keys > 0 ? str_cat(" and 0..", keys - 1) : ""));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status Cache::fetch(const Stream& stream, int32_t number, const pkv_cache_batch& batch,
                          const pkv_cache_hits& hits, const pkv_rows& rows) {
  const std::lock_guard lock(mutex_);
  PKV_RETURN_IF_ERROR(check_layer(number));
  PKV_RETURN_IF_ERROR(check_batch(batch));
  const Layer& layer = this->layer(number);
  const pkv_geometry& g = shape_.geometry;
  const int64_t n = batch_.tokens;
  const int64_t k = shape_.step.k;
  PKV_RETURN_IF_ERROR(check_pointer("hits.positions", hits.positions, n * g.kv_heads * k));
  if (hits.stamp != layer.stamp()) {
    return absl::FailedPreconditionError(
        str_cat("hits are stale: of state ", hits.stamp, " of layer ", number, ", which is now in ",
                layer.stamp(), "; accepted: those of a retrieve since its last change"));
  }
  const pkv_dtype dtype[] = {shape_.desc.dtype};
  const auto check = [&](std::string_view name, const pkv_tensor& tensor, int64_t width) {
    return check_tensor(
        *shape_.device, name, tensor,
        {exactly("n", n), exactly("h", g.kv_heads), exactly("k", k), exactly("width", width)},
        dtype, Access::kOutput);
  };
  std::optional<TensorView> keys;
  std::optional<TensorView> values;
  if (is_present(rows.keys)) {
    PKV_ASSIGN_OR_RETURN(keys, check("rows.keys", rows.keys, g.head_dim));
  }
  if (is_present(rows.values)) {
    if (g.value_dim == 0) {
      return absl::InvalidArgumentError("rows.values are given, accepted: none with v_source=none");
    }
    PKV_ASSIGN_OR_RETURN(values, check("rows.values", rows.values, g.value_dim));
  }
  if (keys && values) {
    PKV_RETURN_IF_ERROR(check_apart("rows.keys", *keys, "rows.values", *values));
  }
  PKV_RETURN_IF_ERROR(begin(stream, number));
  if (shape_.device->info().device_type == PKV_DEVICE_CPU) {
    PKV_RETURN_IF_ERROR(stream.sync());  // the retrieve that wrote them
    int64_t token = 0;
    for (std::size_t i = 0; i < batch_.sequences.size(); ++i) {
      const int64_t encoded = layer.state(batch_.sequences[i]).encoded;
      for (int64_t t = 0; t < batch_.counts[i]; ++t, ++token) {
        PKV_RETURN_IF_ERROR(check_positions(hits.positions + token * g.kv_heads * k, g.kv_heads, k,
                                            token, encoded));
      }
    }
  }
  if (n == 0 || k == 0 || (!keys && !values)) return absl::OkStatus();
  std::vector<int64_t> numbers;  // lengths, then sequences in pairs
  int64_t longest = 0;
  for (std::size_t i = 0; i < batch_.sequences.size(); ++i) {
    const int64_t encoded = layer.state(batch_.sequences[i]).encoded;
    numbers.insert(numbers.end(), static_cast<std::size_t>(batch_.counts[i]), encoded);
    if (batch_.counts[i] > 0) longest = std::max(longest, encoded);
  }
  numbers.resize(numbers.size() + static_cast<std::size_t>((n + 1) / 2));
  auto* next = reinterpret_cast<int32_t*>(numbers.data() + n);
  for (std::size_t i = 0; i < batch_.sequences.size(); ++i) {
    next = std::fill_n(next, batch_.counts[i], batch_.sequences[i]);
  }
  PKV_ASSIGN_OR_RETURN(const int64_t* lengths,
                       pools_->numbers->put(stream, pools_->words, numbers));
  PKV_RETURN_IF_ERROR(pools_->words.flush(stream));
  const auto* sequences = reinterpret_cast<const int32_t*>(lengths + n);
  const int64_t key_shape[4] = {shape_.desc.sequences, g.kv_heads, longest, g.head_dim};
  const int64_t value_shape[4] = {shape_.desc.sequences, g.kv_heads, longest, g.value_dim};
  pkv_fetch_args args{};
  args.struct_size = sizeof args;
  args.kv_heads = g.kv_heads;
  args.batch = {static_cast<int32_t>(n), 0, sequences, lengths, longest};
  args.positions = hits.positions;
  args.k = static_cast<int32_t>(k);
  const auto source = [&](const int64_t* shape) {
    pkv_tensor tensor{};
    tensor.device_type = shape_.device->info().device_type;
    tensor.device_id = shape_.device->info().device_id;
    tensor.ndim = 4;
    tensor.dtype = shape_.desc.dtype;
    tensor.shape = shape;
    return tensor;
  };
  const auto zone_pages = [&](pkv_pages pages) {
    if (layer.has_pool()) pages.table += shape_.desc.sink / pages.page_tokens;
    return pages;
  };
  if (keys) {
    args.source_keys = source(key_shape);
    args.key_pages = zone_pages(layer.keys());
    args.keys = keys->tensor();
  }
  if (values) {
    args.source_values = source(value_shape);
    args.value_pages = zone_pages(layer.values());
    args.values = values->tensor();
  }
  return end(stream, shape_.device->call("fetch", shape_.device->backend().fetch.run,
                                         stream.handle(), &args, nullptr));
}

}  // namespace pkv
