// The fused step for head_dim = 64, K and V of f32.
#include "backends/cuda/fused_instance.cuh"

namespace pkv::cuda {

template gpuError_t launch_fused_shaped<64, 1, true>(const FusedArgs&, const LaunchShape&,
                                                     gpuStream_t);
template gpuError_t launch_fused_shaped<64, 2, true>(const FusedArgs&, const LaunchShape&,
                                                     gpuStream_t);

}  // namespace pkv::cuda
