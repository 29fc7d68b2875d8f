// A decoding step on a layer: retrieve, and attention over sink, zone and tail, for any number of
// query tokens per sequence. docs/algorithm.md, sections 4 to 9.
// Not here: the arguments' checks (cache.h), appending (layer.h), what a query token sees
// (step_numbers.h), the stages' arguments (step_args.h).
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "core/cache/layer.h"
#include "core/cache/shape.h"
#include "core/cache/step_call.h"
#include "core/runtime/buffer.h"
#include "core/runtime/stream.h"

namespace pkv {

// Memory of steps, as large as the largest needed it.
class StepScratch {
 public:
  // Where it grows, the host waits for the stream. `is_frozen`: captured steps use what is there,
  // which stays.
  absl::Status reserve(const Stream& stream, int64_t bytes, bool is_frozen);
  void* data() const { return buffer_.data(); }
  int64_t room() const { return buffer_.bytes(); }  // at data()
  // Allocated in all.
  int64_t bytes() const {
    int64_t bytes = buffer_.bytes();
    for (const Buffer& kept : kept_) bytes += kept.bytes();
    return bytes;
  }

 private:
  Buffer buffer_;
  std::vector<Buffer> kept_;  // for captured steps
};

// The step's scratch is there afterwards, so that run_step does not fail for lack of memory. Zones
// are at most `longest` keys, dense parts `dense` tokens.
absl::Status reserve_step(const CacheShape& shape, const CachePools& pools, const Layer& layer,
                          const Stream& stream, const StepCall& call, int64_t longest,
                          int64_t dense, StepScratch& scratch);
absl::Status run_step(const CacheShape& shape, CachePools& pools, Layer& layer,
                      const Stream& stream, const StepCall& call, const float* sink_logits,
                      StepScratch& scratch);

}  // namespace pkv
