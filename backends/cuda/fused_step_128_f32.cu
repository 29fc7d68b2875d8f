// The fused step for head_dim = 128, K and V of f32.
#include "backends/cuda/fused_instance.cuh"

namespace pkv::cuda {

template gpuError_t launch_fused_shaped<128, 1, true>(const FusedArgs&, const LaunchShape&,
                                                      gpuStream_t);
template gpuError_t launch_fused_shaped<128, 2, true>(const FusedArgs&, const LaunchShape&,
                                                      gpuStream_t);

}  // namespace pkv::cuda
