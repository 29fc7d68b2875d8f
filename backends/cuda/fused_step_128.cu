// The fused step for head_dim = 128.
#include "backends/cuda/fused_instance.cuh"

namespace pkv::cuda {

template int64_t fused_shared_bytes<128>();
template gpuError_t launch_fused_shaped<128, 1>(const FusedArgs&, const LaunchShape&, gpuStream_t);
template gpuError_t launch_fused_shaped<128, 2>(const FusedArgs&, const LaunchShape&, gpuStream_t);

}  // namespace pkv::cuda
