// The launch of stage fetch, for the step that copies rows first.
#pragma once

#include "backends/gpu/gpu_rt.h"
#include "pariskv/pariskv_backend.h"

namespace PKV_GPU_NS {

// 7: as the slot `run`.
gpuError_t launch_fetch(const pkv_fetch_args& args, gpuStream_t stream);

}  // namespace PKV_GPU_NS
