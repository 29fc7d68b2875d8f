// The fused step for head_dim = 256, K and V of 16 bits.
#include "backends/cuda/fused_instance.cuh"

namespace pkv::cuda {

template int64_t fused_shared_bytes<256>();
template gpuError_t launch_fused_shaped<256, 1, false>(const FusedArgs&, const LaunchShape&,
                                                       gpuStream_t);
template gpuError_t launch_fused_shaped<256, 2, false>(const FusedArgs&, const LaunchShape&,
                                                       gpuStream_t);

}  // namespace pkv::cuda
