// The fused step for head_dim = 64, K and V of 16 bits.
#include "backends/cuda/fused_instance.cuh"

namespace pkv::cuda {

template int64_t fused_shared_bytes<64>();
template gpuError_t launch_fused_shaped<64, 1, false>(const FusedArgs&, const LaunchShape&,
                                                      gpuStream_t);
template gpuError_t launch_fused_shaped<64, 2, false>(const FusedArgs&, const LaunchShape&,
                                                      gpuStream_t);

}  // namespace pkv::cuda
