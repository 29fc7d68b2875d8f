// Stage fetch on a place. docs/algorithm.md, section 7.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "tests/conformance/world.h"

namespace pkv::conformance {

struct FetchInput {
  std::optional<Tensor> keys;    // [sequences, h, n, d]
  std::optional<Tensor> values;  // [sequences, h, n, dv]
  Batch batch;
  int32_t heads = 1;
  int32_t k = 0;
  std::vector<int32_t> positions;  // [b * h, k]
  Layout target_layout = Layout::kStrided;
  int64_t page_tokens = 0;  // of the source's pages; 0: not in pages
};

struct Fetched {
  Dense keys;    // [b, h, k, d]; no elements if not wanted
  Dense values;  // [b, h, k, dv]

  template <class F>
  static void each(F f, const Fetched& a, const Fetched& b) {
    f("keys", a.keys, b.keys);
    f("values", a.values, b.values);
  }
};

Fetched run_fetch(const Place& place, uint8_t fill, const FetchInput& input);

}  // namespace pkv::conformance
