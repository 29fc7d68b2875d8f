// K and V in the caller's pages.
#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "core/base/status.h"
#include "core/base/text.h"
#include "core/cache/cache.h"
#include "core/format/records.h"
#include "core/pipeline/checks.h"

namespace pkv {
namespace {

// [pages, h, page_tokens, width], whatever the layout.
absl::StatusOr<TensorView> check_pool(const CacheShape& shape, std::string_view name,
                                      const pkv_tensor& tensor, int32_t layout, const Axis& pages,
                                      const Axis& page_tokens, int64_t width) {
  const pkv_dtype dtype[] = {shape.desc.dtype};
  const Axis heads = exactly("h", shape.geometry.kv_heads);
  if (layout == PKV_LAYOUT_HND) {
    return check_tensor(*shape.device, name, tensor,
                        {pages, heads, page_tokens, exactly("width", width)}, dtype);
  }
  PKV_ASSIGN_OR_RETURN(const TensorView given,
                       check_tensor(*shape.device, name, tensor,
                                    {pages, page_tokens, heads, exactly("width", width)}, dtype));
  const std::array<int64_t, 4> extents = {given.extent(0), given.extent(2), given.extent(1),
                                          given.extent(3)};
  const std::array<int64_t, 4> strides = {given.stride(0), given.stride(2), given.stride(1), 1};
  pkv_tensor turned = given.tensor();
  turned.shape = extents.data();
  turned.strides = strides.data();
  return check_tensor(
      *shape.device, name, turned,
      {at_least("pages", 0), heads, at_least("page_tokens", 0), exactly("width", width)}, dtype);
}

}  // namespace

absl::Status Cache::bind_pool(int32_t number, const pkv_cache_pool& pool) {
  const std::lock_guard lock(mutex_);
  PKV_RETURN_IF_ERROR(check_layer(number));
  PKV_RETURN_IF_ERROR(check_range("layout", pool.layout, PKV_LAYOUT_HND, PKV_LAYOUT_NHD));
  const Axis pages = between("pages", 1, INT32_MAX);
  const Axis page_tokens = between("page_tokens", 1, INT32_MAX);
  PKV_ASSIGN_OR_RETURN(const TensorView keys, check_pool(shape_, "keys", pool.keys, pool.layout,
                                                         pages, page_tokens, shape_.key_elements));
  if (shape_.desc.sink % keys.extent(2) != 0) {
    std::string sizes;
    for (int64_t size = 1; size <= shape_.desc.sink; ++size) {
      if (shape_.desc.sink % size == 0) sizes += str_cat(sizes.empty() ? "" : ", ", size);
    }
    return absl::InvalidArgumentError(str_cat("page_tokens=", keys.extent(2), ", accepted: ", sizes,
                                              ", which divide sink=", shape_.desc.sink));
  }
  std::optional<TensorView> values;
  if (shape_.value_elements > 0) {
    PKV_ASSIGN_OR_RETURN(
        values,
        check_pool(shape_, "values", pool.values, pool.layout, exactly("pages", keys.extent(0)),
                   exactly("page_tokens", keys.extent(2)), shape_.value_elements));
  } else if (is_present(pool.values)) {
    return absl::InvalidArgumentError("values are given, accepted: none unless v_source=own");
  }
  Layer& layer = this->layer(number);
  for (int32_t sequence = 0; sequence < shape_.desc.sequences; ++sequence) {
    const int64_t tokens = layer.state(sequence).tokens;
    if (tokens == 0) continue;
    return absl::FailedPreconditionError(str_cat("layer ", number, ": sequence ", sequence,
                                                 " holds ", tokens, " tokens, accepted: none"));
  }
  return layer.bind(keys, values);
}

// Fills batch_ with what is new.
absl::Status Cache::check_blocks(int32_t number, const pkv_cache_blocks& blocks) {
  const Layer& layer = this->layer(number);
  const int64_t page_tokens = layer.pool().page_tokens();
  pkv_cache_batch batch{};
  batch.batch = blocks.batch;
  batch.sequences = blocks.sequences;
  PKV_RETURN_IF_ERROR(check_batch(batch));
  PKV_RETURN_IF_ERROR(check_pointer("indptr", blocks.indptr, 1));
  PKV_RETURN_IF_ERROR(check_range("indptr[0]", blocks.indptr[0], 0, 0));
  PKV_RETURN_IF_ERROR(check_pointer("last_page", blocks.last_page, blocks.batch));
  batch_.tokens = 0;
  for (int32_t i = 0; i < blocks.batch; ++i) {
    const int64_t begin = blocks.indptr[i];
    const int64_t end = blocks.indptr[i + 1];
    PKV_RETURN_IF_ERROR(check_range(str_cat("indptr[", i + 1, "]"), end, begin, INT32_MAX));
    PKV_RETURN_IF_ERROR(check_pointer("indices", blocks.indices, end));
    const std::string name = str_cat("last_page[", i, "] of sequence ", blocks.sequences[i]);
    PKV_RETURN_IF_ERROR(
        check_range(name, blocks.last_page[i], end > begin ? 1 : 0, end > begin ? page_tokens : 0));
    for (int64_t at = begin; at < end; ++at) {
      PKV_RETURN_IF_ERROR(check_index(str_cat("indices[", at, "]"), blocks.indices[at], 0,
                                      layer.pool().pages() - 1));
    }
    const int64_t tokens = end > begin ? (end - begin - 1) * page_tokens + blocks.last_page[i] : 0;
    const int64_t held = layer.state(blocks.sequences[i]).tokens;
    if (tokens < held) {
      return absl::InvalidArgumentError(
          str_cat("sequence ", blocks.sequences[i], ": its pages hold ", tokens,
                  " tokens, accepted: at least the ", held, " that it has (truncate first)"));
    }
    if (tokens > shape_.desc.capacity) {
      return absl::ResourceExhaustedError(
          str_cat("layer ", number, ", sequence ", blocks.sequences[i], ": needs ", tokens - held,
                  " tokens, has room for ", shape_.desc.capacity - held, " (capacity ",
                  shape_.desc.capacity, ", held ", held, ")"));
    }
    batch_.counts[static_cast<std::size_t>(i)] = tokens - held;
    batch_.tokens += tokens - held;
  }
  return absl::OkStatus();
}

absl::Status Cache::append_pages(const Stream& stream, int32_t number,
                                 const pkv_cache_blocks& blocks, const pkv_tensor* queries) {
  const std::lock_guard lock(mutex_);
  PKV_RETURN_IF_ERROR(check_layer(number));
  Layer& layer = this->layer(number);
  if (!layer.has_pool()) {
    return absl::FailedPreconditionError(
        str_cat("layer ", number, " has pages of its own, accepted: after pkv_cache_bind_pool"));
  }
  PKV_RETURN_IF_ERROR(check_blocks(number, blocks));
  tensors_.keys.reset();
  tensors_.values.reset();
  tensors_.queries.reset();
  if (queries != nullptr) {
    PKV_ASSIGN_OR_RETURN(tensors_.queries, check_tensor(*shape_.device, "queries", *queries,
                                                        {exactly("n", batch_.tokens),
                                                         exactly("hq", shape_.desc.query_heads),
                                                         exactly("d", shape_.geometry.head_dim)},
                                                        kFloatTypes));
  }
  PKV_RETURN_IF_ERROR(begin(stream));
  std::vector<std::vector<int32_t>> before;
  for (const int32_t sequence : batch_.sequences) before.push_back(layer.state(sequence).blocks);
  const auto run = [&]() -> absl::Status {
    for (std::size_t i = 0; i < before.size(); ++i) {
      PKV_RETURN_IF_ERROR(layer.set_blocks(
          stream, batch_.sequences[i],
          {blocks.indices + blocks.indptr[i], blocks.indices + blocks.indptr[i + 1]}));
    }
    return append_checked(stream, number);
  };
  const absl::Status status = within_memory(run);
  for (std::size_t i = 0; !status.ok() && i < before.size(); ++i) {
    layer.set_blocks(stream, batch_.sequences[i], std::move(before[i])).IgnoreError();
  }
  return end(stream, status);
}

}  // namespace pkv
