// What a cache is made of: limits, options, sizes of its pages. Fixed when it is created.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "core/cache/regions.h"
#include "core/plan/config.h"
#include "core/runtime/device.h"
#include "pariskv/pariskv.h"

namespace pkv {

struct LayerPolicy {
  int32_t attention = PKV_CACHE_SPARSE;
  int64_t window = 0;
};

struct CacheShape {
  // INVALID_ARGUMENT names the field; UNIMPLEMENTED: alibi_slopes.
  static absl::StatusOr<CacheShape> create(std::shared_ptr<const Device> device,
                                           const Config& config, const pkv_cache_desc& desc);

  std::shared_ptr<const Device> device;
  Config config;
  pkv_cache_desc desc;  // its pointers are NULL
  std::vector<LayerPolicy> policies;
  std::vector<float> sink_logits;  // [hq], or empty
  pkv_geometry geometry;
  CodecOptions codec_options;
  StepOptions step;
  RegionRules rules;

  // K and V of one token and KV head, side by side.
  int64_t element_bytes;
  int64_t key_elements;
  int64_t value_elements;  // 0 where V is a part of K, or there is none
  int64_t token_elements() const { return key_elements + value_elements; }
  int64_t token_bytes() const { return token_elements() * element_bytes; }

  // Pages. A record page ends with the sums over all positions before its first one.
  int64_t sink_page_bytes;
  int64_t row_page_bytes;
  int64_t record_row_bytes;  // of one KV head
  int64_t value_sum_bytes;   // [h, dv] double
  int64_t good_count_bytes;  // [h] int64
  int64_t occupancy_bytes;   // [h, d/8, 256] int32, tier only
  int64_t value_sums_at;     // from the page's begin, as the next two
  int64_t good_counts_at;
  int64_t occupancy_at;
  int64_t record_page_bytes;
  int64_t page_occupancy_bytes() const { return record_page_bytes - occupancy_at; }

  int64_t row_pages(int64_t tokens) const;  // of the positions behind the sink
  int64_t record_pages(int64_t zone) const {
    return (zone + desc.page_tokens - 1) / desc.page_tokens;
  }
  // Whether rows that lie in host memory are on the device too while they are attended in full, and
  // how many tokens' of a sequence at most.
  bool keeps_recent_rows() const;
  int64_t most_recent_tokens() const;

 private:
  CacheShape(std::shared_ptr<const Device> with_device, const Config& with_config)
      : device(std::move(with_device)), config(with_config) {}
  absl::Status check_desc(const pkv_cache_desc& given);
  absl::Status set_policies(const pkv_cache_desc& given);
  absl::Status set_sizes();
};

}  // namespace pkv
