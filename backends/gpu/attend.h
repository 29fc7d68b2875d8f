// Launches of stage attend, for the slot and for the step.
#pragma once

#include "backends/gpu/attend.cuh"
#include "backends/gpu/scratch.h"

namespace PKV_GPU_NS {

pkv_status check_attend(const pkv_host* host, const pkv_attend_args& args,
                        const pkv_tensor& row_keys, const pkv_tensor& row_values);

// Whether one pass over K and V serves all heads of a group.
bool reads_rows_once(const pkv_attend_args& args);

// Room for the partial results of `args`.
Partials take_partials(Scratch& scratch, const pkv_attend_args& args);

// 8, with the fetched rows as `rows` says, those that `row_cache` has from there, and `bad` [b * h]
// of section 4.4.
gpuError_t launch_attend(const pkv_attend_args& args, const TokenRun& rows,
                         const pkv_row_cache_args& row_cache, const int32_t* bad,
                         const Partials& partials, gpuStream_t stream);

}  // namespace PKV_GPU_NS
