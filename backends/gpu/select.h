// The launch of stage select, for the slot and for the step.
#pragma once

#include "backends/gpu/best.cuh"
#include "backends/gpu/scratch.h"
#include "pariskv/pariskv_backend.h"

namespace PKV_GPU_NS {

// Room for `args`. Without bins: rows are short, and each is chosen from in one go.
BestScratch take_select_scratch(Scratch& scratch, const pkv_select_args& args);

// is_counted: the first pass's bins are counted, the other bins are 0.
gpuError_t launch_select(const pkv_select_args& args, const BestScratch& scratch, bool is_counted,
                         gpuStream_t stream);

}  // namespace PKV_GPU_NS
