// Attention in full that leaves bad tokens out (docs/algorithm.md, 3.6): sequences that would see
// some leave their dense parts to this, which attends to the other tokens' rows, copied, KV head by
// KV head, and merges. Rare, so it takes memory of its own. Rows in host memory only.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "core/base/tensor.h"
#include "core/cache/layer.h"
#include "core/cache/shape.h"
#include "core/cache/step.h"
#include "core/runtime/buffer.h"
#include "core/runtime/stream.h"

namespace pkv {

class DenseGaps {
 public:
  DenseGaps(const CacheShape& shape, const Layer& layer, const StepCall& call);
  bool is_empty() const { return runs_.empty(); }

  // The call as run_step takes it: without those dense parts, into results of its own.
  absl::StatusOr<StepCall> other_parts();
  // After run_step: the parts left out, and both together into the call's results.
  absl::Status finish(const Stream& stream);

 private:
  // Query tokens [first, first + count) of the call, those of one sequence.
  struct Run {
    int32_t sequence;
    int64_t first;
    int64_t count;
  };
  // Tokens that some query of a run attends to in full, by KV head without the bad ones.
  struct Rows {
    std::vector<int64_t> positions;
    Buffer memory;  // [tokens, d], then [tokens, dv]
    const void* keys = nullptr;
    const void* values = nullptr;
  };

  int64_t keys_of(const SequenceState& state) const;
  int64_t first_seen(int64_t position) const;
  bool sees_bad(const Run& run) const;
  absl::StatusOr<Rows> gather(const Run& run, int32_t head) const;
  absl::Status attend(const Stream& stream, const Run& run, int32_t head);

  const CacheShape& shape_;
  const Layer& layer_;
  const StepCall& call_;
  std::vector<uint8_t> without_dense_;  // by sequence of the call; empty: none
  std::vector<Run> runs_;               // of those
  struct Results {
    Buffer output;  // [n, hq, dv] f32
    Buffer lse;     // [n, hq]
  };
  Results others_, dense_;
  std::optional<TensorView> others_output_;
};

}  // namespace pkv
