#include "core/cache/shape.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <string>

#include "core/base/checked.h"
#include "core/base/dtype.h"
#include "core/base/status.h"
#include "core/base/text.h"
#include "core/cache/words.h"
#include "core/format/pages.h"
#include "core/format/records.h"
#include "core/pipeline/checks.h"
#include "core/runtime/row_bytes.h"

namespace pkv {
namespace {

constexpr int64_t kMaxSink = 65536;
constexpr int64_t kMaxRegion = int64_t{1} << 20;
constexpr int64_t kMaxPage = 65536;

absl::Status check_policy(const pkv_cache_layer& policy, int32_t layer) {
  constexpr int64_t kBytes = sizeof(pkv_cache_layer);
  PKV_RETURN_IF_ERROR(check_range(str_cat("policies[", layer, "].struct_size"), policy.struct_size,
                                  kBytes, kBytes));
  PKV_RETURN_IF_ERROR(check_range(str_cat("policies[", layer, "].attention"), policy.attention,
                                  PKV_CACHE_SPARSE, PKV_CACHE_WINDOW));
  const bool is_window = policy.attention == PKV_CACHE_WINDOW;
  return check_range(str_cat("policies[", layer, "].window"), policy.window, is_window ? 1 : 0,
                     is_window ? format::kMaxTokens : 0);
}

}  // namespace

absl::StatusOr<CacheShape> CacheShape::create(std::shared_ptr<const Device> device,
                                              const Config& config, const pkv_cache_desc& desc) {
  CacheShape shape(std::move(device), config);
  PKV_RETURN_IF_ERROR(shape.check_desc(desc));
  PKV_RETURN_IF_ERROR(shape.set_policies(desc));
  shape.desc = desc;
  shape.desc.sink_logits = shape.desc.alibi_slopes = nullptr;
  shape.desc.policies = nullptr;
  shape.rules = {desc.sink, desc.local, desc.interval, desc.dense_below, desc.refits != 0};
  PKV_ASSIGN_OR_RETURN(shape.geometry, config.geometry(desc.kv_heads));
  shape.codec_options = config.codec_options();
  PKV_ASSIGN_OR_RETURN(shape.step, config.step_options());
  if (desc.sink_logits != nullptr) {
    shape.sink_logits.assign(desc.sink_logits, desc.sink_logits + desc.query_heads);
    for (std::size_t i = 0; i < shape.sink_logits.size(); ++i) {
      const float logit = shape.sink_logits[i];
      if (std::isfinite(logit) || logit == -std::numeric_limits<float>::infinity()) continue;
      return absl::InvalidArgumentError(
          str_cat("sink_logits[", i, "]=", logit, ", accepted: finite numbers and -inf"));
    }
  }
  PKV_RETURN_IF_ERROR(shape.set_sizes());
  return shape;
}

absl::Status CacheShape::check_desc(const pkv_cache_desc& d) {
  if (d.alibi_slopes != nullptr) {
    return absl::UnimplementedError(
        "alibi_slopes are given, accepted: NULL; estimates from key records do not know the "
        "distance that a slope multiplies");
  }
  PKV_RETURN_IF_ERROR(check_range("layers", d.layers, 1, 4096));
  PKV_RETURN_IF_ERROR(check_range("sequences", d.sequences, 1, 65536));
  PKV_RETURN_IF_ERROR(check_range("kv_heads", d.kv_heads, 1, int64_t{1} << 20));
  PKV_RETURN_IF_ERROR(check_query_heads(d.query_heads, d.kv_heads));
  if (std::find(std::begin(kFloatTypes), std::end(kFloatTypes), d.dtype) == std::end(kFloatTypes)) {
    return absl::InvalidArgumentError(
        str_cat("dtype=", d.dtype, ", accepted: 1 (f32), 3 (f16), 4 (bf16)"));
  }
  PKV_RETURN_IF_ERROR(check_range("capacity", d.capacity, 1, format::kMaxTokens));
  PKV_RETURN_IF_ERROR(check_range("max_bytes", d.max_bytes, 0, INT64_MAX));
  PKV_RETURN_IF_ERROR(check_range("sink", d.sink, 0, kMaxSink));
  PKV_RETURN_IF_ERROR(check_range("local", d.local, 0, kMaxRegion));
  PKV_RETURN_IF_ERROR(check_range("interval", d.interval, 1, kMaxRegion));
  PKV_RETURN_IF_ERROR(check_range("dense_below", d.dense_below, 1, format::kMaxTokens));
  if (!std::has_single_bit(static_cast<uint64_t>(d.page_tokens)) ||
      d.page_tokens < format::kMinPageCapacity || d.page_tokens > kMaxPage) {
    return absl::InvalidArgumentError(str_cat("page_tokens=", d.page_tokens,
                                              ", accepted: powers of two from ",
                                              format::kMinPageCapacity, " to ", kMaxPage));
  }
  PKV_RETURN_IF_ERROR(check_range("rows_memory", d.rows_memory, PKV_ALLOC_DEVICE, PKV_ALLOC_HOST));
  PKV_RETURN_IF_ERROR(check_range("fit_positions", d.fit_positions, 0, 4096));
  PKV_RETURN_IF_ERROR(check_range("refits", d.refits, 0, 1));
  PKV_RETURN_IF_ERROR(check_range("deferred", d.deferred, 0, 1));
  PKV_RETURN_IF_ERROR(check_range("reserved", d.reserved, 0, 0));
  if (d.soft_cap >= 0 && d.soft_cap <= 1e6F) return absl::OkStatus();
  return absl::InvalidArgumentError(
      str_cat("soft_cap=", d.soft_cap, ", accepted: 0 (none), or above 0 and at most 1e6"));
}

absl::Status CacheShape::set_policies(const pkv_cache_desc& given) {
  policies.resize(static_cast<std::size_t>(given.layers));
  if (given.policies == nullptr) return absl::OkStatus();
  for (int32_t layer = 0; layer < given.layers; ++layer) {
    const pkv_cache_layer& policy = given.policies[layer];
    PKV_RETURN_IF_ERROR(check_policy(policy, layer));
    policies[static_cast<std::size_t>(layer)] = {policy.attention, policy.window};
  }
  return absl::OkStatus();
}

absl::Status CacheShape::set_sizes() {
  const int64_t h = geometry.kv_heads;
  if (geometry.sketch_stride > 1 && desc.page_tokens % geometry.sketch_stride != 0) {
    return absl::InvalidArgumentError(str_cat("page_tokens=", desc.page_tokens,
                                              ", accepted: multiples of the sketch's stride ",
                                              geometry.sketch_stride));
  }
  element_bytes = dtype_bytes(desc.dtype);
  key_elements = geometry.head_dim;
  value_elements = geometry.v_source == PKV_V_SOURCE_OWN ? geometry.value_dim : 0;
  const auto rows = [&](int64_t tokens) {
    return checked_product("rows of a page",
                           {{"kv_heads", h}, {"tokens", tokens}, {"token_bytes", token_bytes()}});
  };
  PKV_ASSIGN_OR_RETURN(sink_page_bytes, rows(std::max<int64_t>(1, desc.sink)));
  PKV_ASSIGN_OR_RETURN(row_page_bytes, rows(desc.page_tokens));
  sink_page_bytes = padded(sink_page_bytes);
  row_page_bytes = padded(row_page_bytes);
  PKV_ASSIGN_OR_RETURN(record_row_bytes, store_row_bytes(*device, geometry, desc.page_tokens));
  value_sum_bytes = h * geometry.value_dim * int64_t{sizeof(double)};
  good_count_bytes = h * int64_t{sizeof(int64_t)};
  occupancy_bytes = geometry.vote == PKV_VOTE_TIER
                        ? h * (geometry.head_dim / format::kSubspace) * format::kCentroids *
                              int64_t{sizeof(int32_t)}
                        : 0;
  value_sums_at = h * record_row_bytes;
  good_counts_at = value_sums_at + padded(value_sum_bytes);
  occupancy_at = good_counts_at + padded(good_count_bytes);
  record_page_bytes = occupancy_at + padded(occupancy_bytes);
  return absl::OkStatus();
}

int64_t CacheShape::row_pages(int64_t tokens) const {
  const int64_t behind = std::max<int64_t>(0, tokens - desc.sink);
  return (behind + desc.page_tokens - 1) / desc.page_tokens;
}

bool CacheShape::keeps_recent_rows() const {
  return desc.rows_memory == PKV_ALLOC_HOST && Words::are_served(*device) &&
         device->backend().has_recent_rows != 0;
}

// What a captured step may see of an encoded sequence; of one that never is, not all.
int64_t CacheShape::most_recent_tokens() const {
  constexpr int64_t kMostUnencoded = 8192;
  return rules.sink + rules.local + 2 * rules.interval + std::min(first_fit(rules), kMostUnencoded);
}

}  // namespace pkv
