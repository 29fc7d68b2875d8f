// The arguments of a step's stages on a layer, and where they lie in its scratch.
// docs/algorithm.md, sections 4 to 8. Not here: which query token sees what (step_numbers.h).
#pragma once

#include <array>
#include <cstdint>

#include "absl/status/status.h"
#include "core/cache/layer.h"
#include "core/cache/shape.h"
#include "core/cache/step_call.h"
#include "core/cache/step_numbers.h"
#include "core/plan/scratch.h"

namespace pkv {

// A [.., tokens, width] that lies in pages: shape and dtype only.
struct PagedTensor {
  std::array<int64_t, 4> shape;
  std::array<int64_t, 4> strides{};
  pkv_tensor tensor;
  PagedTensor(const CacheShape& cache, int64_t entries, int64_t tokens, int64_t width)
      : shape{entries, cache.geometry.kv_heads, tokens, width}, tensor{} {
    tensor.device_type = cache.device->info().device_type;
    tensor.device_id = cache.device->info().device_id;
    tensor.ndim = 4;
    tensor.dtype = cache.desc.dtype;
    tensor.shape = shape.data();
  }
  // In one piece at `data` instead, dense: a backend is given strides then.
  void put(void* data) {
    strides = {shape[1] * shape[2] * shape[3], shape[2] * shape[3], shape[3], 1};
    tensor.strides = strides.data();
    tensor.data = data;
  }
  PagedTensor(const PagedTensor&) = delete;
  PagedTensor& operator=(const PagedTensor&) = delete;
};

// Everything of a call but where its scratch lies.
class StepArgs {
 public:
  StepArgs(const CacheShape& shape, const Layer& layer, const StepCall& call,
           const StepExtents& extents);
  StepArgs(const StepArgs&) = delete;
  StepArgs& operator=(const StepArgs&) = delete;

  // Sizes and options; books the scratch.
  absl::Status plan();
  int64_t scratch_bytes() const { return ledger_.bytes(); }
  // Where the device writes the numbers of the call, if it does.
  StepNumbers numbers_on_device(void* memory) const {
    return {ledger_.get<std::byte>(memory, Piece::kNumbers), call_.tokens};
  }
  absl::Status run(const Stream& stream, const StepNumbers& numbers, void* memory,
                   const float* sink_logits);

 private:
  void fill_zone();
  void fill_attend();
  absl::Status book(int64_t rows);
  void place_parts(const StepNumbers& numbers);
  void place_hits(void* memory);

  const CacheShape& shape_;
  const Layer& layer_;
  const StepCall& call_;
  StepExtents extents_;
  bool has_zone_;
  bool fetches_ = false;
  bool is_fused_ = false;
  int64_t candidates_ = 0;
  int64_t stride_ = 0;
  int64_t votes_stride_ = 0;
  pkv_batch batch_{};
  pkv_step_args args_{};
  ScratchLedger ledger_;
  PagedTensor sink_keys_, sink_values_, row_keys_, row_values_;
  PagedTensor zone_keys_, zone_values_;
  PagedTensor hit_keys_, hit_values_;
};

}  // namespace pkv
