#include "core/cache/step.h"

#include <cstddef>
#include <utility>

#include "core/base/status.h"
#include "core/base/text.h"
#include "core/cache/step_args.h"
#include "core/cache/step_numbers.h"

namespace pkv {

absl::Status StepScratch::reserve(const Stream& stream, int64_t bytes, bool is_frozen) {
  if (bytes <= room()) return absl::OkStatus();
  PKV_ASSIGN_OR_RETURN(Buffer larger, Buffer::create(stream.device(), PKV_MEMORY_DEVICE, bytes));
  if (is_frozen) {
    kept_.push_back(std::move(buffer_));
  } else {
    PKV_RETURN_IF_ERROR(stream.sync());
  }
  buffer_ = std::move(larger);
  return absl::OkStatus();
}

absl::Status reserve_step(const CacheShape& shape, const CachePools& pools, const Layer& layer,
                          const Stream& stream, const StepCall& call, int64_t longest,
                          int64_t dense, StepScratch& scratch) {
  if (call.tokens == 0) return absl::OkStatus();
  StepArgs step(shape, layer, call, {longest, shape.desc.sink, dense});
  PKV_RETURN_IF_ERROR(step.plan());
  return scratch.reserve(stream, step.scratch_bytes(), pools.is_frozen);
}

absl::Status run_step(const CacheShape& shape, CachePools& pools, Layer& layer,
                      const Stream& stream, const StepCall& call, const float* sink_logits,
                      StepScratch& scratch) {
  if (call.tokens == 0) return absl::OkStatus();
  const StepExtents extents =
      call.is_captured ? captured_extents(shape, layer, call.is_exact, pools.reserved_tokens)
                       : extents_of(shape, layer, call);
  StepArgs step(shape, layer, call, extents);
  PKV_RETURN_IF_ERROR(step.plan());
  if (call.is_captured && step.scratch_bytes() > scratch.room()) {
    return absl::FailedPreconditionError(str_cat("a captured step needs ", step.scratch_bytes(),
                                                 " bytes of scratch, has room for ", scratch.room(),
                                                 " (pkv_cache_reserve first)"));
  }
  PKV_RETURN_IF_ERROR(scratch.reserve(stream, step.scratch_bytes(), pools.is_frozen));
  if (layer.is_on_device()) {
    const StepNumbers numbers = step.numbers_on_device(scratch.data());
    PKV_RETURN_IF_ERROR(enqueue_numbers(layer, stream, call, extents, numbers));
    if (!call.without_dense.empty()) {  // where the host reads rows, so these too
      PKV_RETURN_IF_ERROR(stream.sync());
      write_numbers(shape, layer, call, numbers);
    }
    return step.run(stream, numbers, scratch.data(), sink_logits);
  }
  PKV_ASSIGN_OR_RETURN(std::byte * memory,
                       pools.numbers->take(stream, StepNumbers::bytes(call.tokens)));
  const StepNumbers numbers(memory, call.tokens);
  write_numbers(shape, layer, call, numbers);
  return step.run(stream, numbers, scratch.data(), sink_logits);
}

}  // namespace pkv
