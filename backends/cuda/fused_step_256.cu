// The fused step for head_dim = 256.
#include "backends/cuda/fused_instance.cuh"

namespace pkv::cuda {

#define PKV_FUSED_INSTANCE(tiles, is_wide)                                                      \
  template gpuError_t launch_fused_shaped<256, tiles, is_wide>(const FusedArgs&, const LaunchShape&, \
                                                               gpuStream_t)
template int64_t fused_shared_bytes<256>();
PKV_FUSED_INSTANCE(1, false);
PKV_FUSED_INSTANCE(1, true);
PKV_FUSED_INSTANCE(2, false);
PKV_FUSED_INSTANCE(2, true);

}  // namespace pkv::cuda
