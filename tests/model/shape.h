// What a cache of the tests looks like: the fields of pkv_cache_desc and the options of its config.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "pariskv/pariskv.h"

namespace pkv::cache_model {

struct Shape {
  std::string name;
  std::vector<std::pair<std::string, std::string>> options;  // head_dim, value_dim aside
  int32_t layers = 1;
  int32_t sequences = 8;
  int32_t kv_heads = 2;
  int32_t query_heads = 4;
  int32_t head_dim = 32;
  int32_t value_dim = 32;
  int32_t v_source = PKV_V_SOURCE_OWN;
  pkv_dtype dtype = PKV_DTYPE_F32;
  pkv_dtype query_dtype = PKV_DTYPE_F32;
  pkv_dtype output_dtype = PKV_DTYPE_F32;
  int64_t capacity = 4096;
  int64_t max_bytes = 0;
  int64_t sink = 4;
  int64_t local = 16;
  int64_t interval = 16;
  int64_t dense_below = 64;
  int64_t page_tokens = 64;
  int32_t rows_memory = PKV_ALLOC_HOST;
  int32_t fit_positions = 48;
  int32_t refits = 1;
  int32_t deferred = 0;
  float soft_cap = 0;
  std::vector<float> sink_logits;
  struct Policy {
    int32_t attention = PKV_CACHE_SPARSE;
    int64_t window = 0;
  };
  std::vector<Policy> policies;  // empty: all sparse
  std::string profile = "default";

  int32_t group() const { return query_heads / kv_heads; }
  Policy policy(int32_t layer) const {
    return policies.empty() ? Policy{} : policies[static_cast<std::size_t>(layer)];
  }
  bool is_sparse(int32_t layer) const { return policy(layer).attention == PKV_CACHE_SPARSE; }
  bool has_own_values() const { return v_source == PKV_V_SOURCE_OWN; }
  bool attends() const { return v_source != PKV_V_SOURCE_NONE; }
  std::string option(const std::string& wanted, const std::string& otherwise) const {
    for (auto pair = options.rbegin(); pair != options.rend(); ++pair) {
      if (pair->first == wanted) return pair->second;
    }
    return otherwise;
  }
  Shape with(const std::string& key, const std::string& value) const {
    Shape copy = *this;
    copy.options.emplace_back(key, value);
    return copy;
  }
};

}  // namespace pkv::cache_model
