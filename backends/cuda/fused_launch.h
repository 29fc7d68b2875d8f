// The instances of the fused step, one source file per head_dim.
#pragma once

#include "backends/cuda/fused.h"

namespace pkv::cuda {

// Of FusedShared, a multiple of 128.
template <int kDim>
int64_t fused_shared_bytes();

// kTiles: query heads of a group, in fours. kIsWide: K and V are f32.
template <int kDim, int kTiles, bool kIsWide>
gpuError_t launch_fused_shaped(const FusedArgs& args, const LaunchShape& shape, gpuStream_t stream);

}  // namespace pkv::cuda
