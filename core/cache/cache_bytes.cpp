// What a cache will hold, before there is one.
#include <algorithm>
#include <cstddef>
#include <set>

#include "core/base/checked.h"
#include "core/base/dtype.h"
#include "core/base/status.h"
#include "core/base/text.h"
#include "core/cache/cache.h"
#include "core/pipeline/checks.h"

namespace pkv {
namespace {

// Blocks of kept queries of a sequence that was appended `tokens` tokens with queries.
int64_t query_blocks(const CacheShape& shape, int64_t tokens) {
  std::set<int64_t> blocks;
  for (int64_t fit = first_fit(shape.rules); fit != kNever; fit = next_fit(shape.rules, fit)) {
    const int64_t until = tokens_of_zone(shape.rules, fit);
    const int64_t begin = std::max<int64_t>(0, until - shape.desc.fit_positions);
    const int64_t end = std::min(until, tokens);
    if (begin >= tokens) break;
    if (begin >= end) continue;
    for (int64_t b = begin / QueryLog::kBlock; b <= (end - 1) / QueryLog::kBlock; ++b) {
      blocks.insert(b);
    }
  }
  return static_cast<int64_t>(blocks.size());
}

int64_t fit_count(const CacheShape& shape, int64_t zone) {
  int64_t count = 0;
  for (int64_t fit = first_fit(shape.rules); fit <= zone && fit != kNever;
       fit = next_fit(shape.rules, fit)) {
    ++count;
  }
  return count;
}

}  // namespace

absl::StatusOr<pkv_cache_usage> Cache::bytes(std::shared_ptr<const Device> device,
                                             const Config& config, const pkv_cache_desc& desc,
                                             std::span<const int64_t> lengths,
                                             pkv_dtype query_type) {
  PKV_ASSIGN_OR_RETURN(const CacheShape shape, CacheShape::create(std::move(device), config, desc));
  PKV_RETURN_IF_ERROR(
      check_range("count", static_cast<int64_t>(lengths.size()), 0, desc.sequences));
  const bool is_float = std::find(std::begin(kFloatTypes), std::end(kFloatTypes), query_type) !=
                        std::end(kFloatTypes);
  if (query_type != 0 && !is_float) {
    return absl::InvalidArgumentError(
        str_cat("query_dtype=", query_type, ", accepted: 0 (none), 1 (f32), 3 (f16), 4 (bf16)"));
  }
  const int64_t query_bytes = int64_t{desc.query_heads} * shape.geometry.head_dim *
                              dtype_bytes(query_type) * QueryLog::kBlock;
  pkv_cache_usage usage{};
  usage.struct_size = sizeof usage;
  int64_t sinks = 0, rows = 0, records = 0, blocks = 0, sets = 1, fits = 0;
  int64_t most_rows = 1, most_records = 1, record_places = 0, row_places = 0;
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    const int64_t tokens = lengths[i];
    PKV_RETURN_IF_ERROR(check_range(str_cat("lengths[", i, "]"), tokens, 0, desc.capacity));
    const int64_t zone = zone_of(shape.rules, tokens);
    const int64_t encoded = zone >= first_fit(shape.rules) ? zone : 0;
    sinks += tokens > 0 && desc.sink > 0 ? 1 : 0;
    rows += shape.row_pages(tokens);
    records += shape.record_pages(encoded);
    record_places += shape.record_pages(encoded) * desc.page_tokens - encoded;
    row_places +=
        shape.row_pages(tokens) * desc.page_tokens + (tokens > 0 ? desc.sink : 0) - tokens;
    most_rows = std::max(most_rows, shape.row_pages(tokens));
    most_records = std::max(most_records, shape.record_pages(encoded));
    sets += encoded > 0 ? 1 : 0;
    fits += fit_count(shape, zone);
    if (query_type != 0 && desc.fit_positions > 0) blocks += query_blocks(shape, tokens);
  }
  const auto add = [](int64_t& sum, std::initializer_list<Named> sizes) -> absl::Status {
    PKV_ASSIGN_OR_RETURN(const int64_t product, checked_product("cache bytes", sizes));
    PKV_ASSIGN_OR_RETURN(sum, checked_sum("cache bytes", {{"held", sum}, {"more", product}}));
    return absl::OkStatus();
  };
  const int64_t sequences = desc.sequences;
  const int64_t pointer = sizeof(void*);
  const int64_t heads = shape.geometry.kv_heads;
  for (const LayerPolicy& policy : shape.policies) {
    const bool is_sparse = policy.attention == PKV_CACHE_SPARSE;
    const int64_t row_tables = is_sparse && shape.keeps_recent_rows() ? 2 : 1;
    PKV_RETURN_IF_ERROR(add(usage.row_pages, {{"sinks", sinks}, {"bytes", shape.sink_page_bytes}}));
    PKV_RETURN_IF_ERROR(add(usage.row_pages, {{"pages", rows}, {"bytes", shape.row_page_bytes}}));
    PKV_RETURN_IF_ERROR(
        add(usage.tables, {{"sequences", sequences},
                           {"entries", 1 + row_tables * PageTable::stride_for(most_rows) +
                                           PageTable::stride_for(is_sparse ? most_records : 1)},
                           {"bytes", pointer}}));
    PKV_RETURN_IF_ERROR(
        add(usage.partly,
            {{"places", row_places}, {"kv_heads", heads}, {"bytes", shape.token_bytes()}}));
    const int64_t codecs = is_sparse ? sets + fits : 1;
    PKV_RETURN_IF_ERROR(
        add(usage.codecs, {{"sets", codecs}, {"bytes", CodecSets::set_bytes(shape.geometry)}}));
    if (!is_sparse) continue;
    PKV_RETURN_IF_ERROR(
        add(usage.record_pages, {{"pages", records}, {"bytes", shape.occupancy_at}}));
    PKV_RETURN_IF_ERROR(
        add(usage.occupancy, {{"pages", records}, {"bytes", shape.page_occupancy_bytes()}}));
    PKV_RETURN_IF_ERROR(
        add(usage.tables,
            {{"sequences", sequences}, {"bytes", shape.value_sum_bytes + shape.good_count_bytes}}));
    PKV_RETURN_IF_ERROR(
        add(usage.occupancy, {{"sequences", sequences}, {"bytes", shape.occupancy_bytes}}));
    PKV_RETURN_IF_ERROR(add(usage.samples, {{"blocks", blocks}, {"bytes", query_bytes}}));
    usage.partly += record_places * heads * shape.record_row_bytes / desc.page_tokens;
  }
  if (Words::are_served(*shape.device)) {  // states of sequences, and faults
    PKV_RETURN_IF_ERROR(add(usage.tables, {{"layers", desc.layers},
                                           {"sequences", sequences + 1},
                                           {"bytes", int64_t{sizeof(pkv_sequence_state)}}}));
  }
  usage.tables += HostNumbers::bytes_for(patterns_of(shape));
  usage.tables += static_cast<int64_t>(shape.sink_logits.size() * sizeof(float));
  PKV_ASSIGN_OR_RETURN(usage.total,
                       checked_sum("cache bytes", {{"row_pages", usage.row_pages},
                                                   {"record_pages", usage.record_pages},
                                                   {"tables", usage.tables},
                                                   {"occupancy", usage.occupancy},
                                                   {"codecs", usage.codecs},
                                                   {"samples", usage.samples}}));
  return usage;
}

}  // namespace pkv
