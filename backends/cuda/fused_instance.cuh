// Bodies of fused_launch.h, for the sources that have the instances.
#pragma once

#include "backends/cuda/fused_kernel.cuh"
#include "backends/cuda/fused_launch.h"

namespace pkv::cuda {

template <int kDim>
int64_t fused_shared_bytes() {
  return gpu::round_up(sizeof(FusedShared<kDim>), 128);
}

template <int kDim, int kTiles, bool kIsWide>
gpuError_t launch_fused_shaped(const FusedArgs& args, const LaunchShape& shape,
                               gpuStream_t stream) {
  return launch("fused_step", fused_step<kDim, kTiles, kIsWide>, shape, stream, args);
}

}  // namespace pkv::cuda
