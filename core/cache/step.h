// A decoding step on a layer: retrieve, and attention over sink, zone and tail, for any number of
// query tokens per sequence. docs/algorithm.md, sections 4 to 9.
// Not here: the arguments' checks (cache.h), appending (layer.h).
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "core/base/tensor.h"
#include "core/cache/layer.h"
#include "core/cache/shape.h"
#include "core/runtime/buffer.h"
#include "core/runtime/stream.h"
#include "pariskv/pariskv.h"

namespace pkv {

struct StepCall {
  std::span<const int32_t> sequences;
  std::span<const int64_t> counts;  // query tokens of each
  int64_t tokens;                   // n, their sum
  const TensorView* query;          // [n, hq, d]
  const TensorView* output;         // [n, hq, dv]; NULL: retrieve alone
  float* lse;
  bool is_exact;
  const pkv_cache_hits* hits;  // NULL: not wanted
  // By sequence; empty: none. Attends to the zone alone: dense_gaps.h.
  std::span<const uint8_t> without_dense;
};

// Memory of steps, as large as the largest needed it.
class StepScratch {
 public:
  // Nothing enqueued uses it.
  absl::Status reserve(const std::shared_ptr<const Device>& device, int64_t bytes);
  void* data() const { return buffer_.data(); }
  int64_t bytes() const { return buffer_.bytes(); }

 private:
  Buffer buffer_;
};

// The step's scratch is there afterwards, so that run_step does not fail for lack of memory. Zones
// are at most `longest` keys, dense parts `dense` tokens.
absl::Status reserve_step(const CacheShape& shape, const Layer& layer, const StepCall& call,
                          int64_t longest, int64_t dense, StepScratch& scratch);
absl::Status run_step(const CacheShape& shape, CachePools& pools, const Layer& layer,
                      const Stream& stream, const StepCall& call, const float* sink_logits,
                      StepScratch& scratch);

}  // namespace pkv
