// The runtime of a GPU under neutral names: CUDA, HIP, or the executor on the host. One of three
// places that know vendors (with gpu_lanes.cuh and gpu_vec.cuh); a build says which it is by
// PKV_GPU_CUDA, PKV_GPU_HIP or PKV_GPU_HOST. docs/decisions/0010-gpu-source.md has the rules.
//   PKV_GPU_NS          the namespace of everything that is compiled per vendor
//   PKV_DEVICE          a function of kernels
//   PKV_KERNEL(threads) a kernel of blocks of so many threads; blocks have one dimension. A second
//                       number is the vendor's second launch bound
//   PKV_SHARED(T, name) shared memory of the block, a T without constructor; T has no comma
//   PKV_DYNAMIC_SHARED(name)  the launch's dynamic shared memory, aligned to 128
//   PKV_GPU_TRAITS, PKV_GPU_VENDOR  quoted headers of the vendor's folder, set by the build
//   PKV_HIP_ARCH        HIP: the one architecture that this compilation is for, as gfx90a
#pragma once

#include <cstddef>
#include <cstdint>
#include <tuple>
#include <type_traits>
#include <utility>

#if defined(PKV_GPU_CUDA)
#include <cuda_runtime.h>

#include "backends/gpu/host_memory.h"
#define PKV_GPU_NS pkv::cuda
#define PKV_VENDOR(name) cuda##name
#elif defined(PKV_GPU_HIP)
#include <hip/hip_runtime.h>

#include "backends/gpu/host_memory.h"
#define PKV_GPU_NS pkv::hip::PKV_HIP_ARCH
#define PKV_VENDOR(name) hip##name
#elif defined(PKV_GPU_HOST)
#include "backends/gpu/host/runtime.h"
#define PKV_GPU_NS pkv::gpu_host
#else
#error "one of PKV_GPU_CUDA, PKV_GPU_HIP, PKV_GPU_HOST"
#endif

#if !defined(PKV_GPU_HOST)
#define PKV_DEVICE __device__ __forceinline__
#if defined(PKV_GPU_HIP)
// HIP's second bound counts lane groups of a SIMD unit: four units have the blocks of a processor.
#define PKV_BOUNDS(threads, blocks, ...) \
  __launch_bounds__(threads, (((threads) / PKV_HIP_LANES * (blocks) + 3) / 4))
#define PKV_KERNEL(...) __global__ void PKV_BOUNDS(__VA_ARGS__, 1, 0)
#else
#define PKV_KERNEL(...) __global__ void __launch_bounds__(__VA_ARGS__)
#endif
#define PKV_SHARED(T, name) __shared__ T name
#define PKV_DYNAMIC_SHARED(name)                               \
  extern __shared__ __align__(128) unsigned char pkv_shared[]; \
  unsigned char* const name = pkv_shared

using gpuError_t = PKV_VENDOR(Error_t);
using gpuStream_t = PKV_VENDOR(Stream_t);
using gpuEvent_t = PKV_VENDOR(Event_t);
#if defined(PKV_GPU_HIP)
using gpuDeviceProp = hipDeviceProp_t;
#else
using gpuDeviceProp = cudaDeviceProp;
#endif

#define gpuSuccess PKV_VENDOR(Success)
#define gpuErrorInvalidValue PKV_VENDOR(ErrorInvalidValue)
#define gpuErrorMemoryAllocation PKV_VENDOR(ErrorMemoryAllocation)
#define gpuErrorNoDevice PKV_VENDOR(ErrorNoDevice)
#define gpuGetErrorString PKV_VENDOR(GetErrorString)
#define gpuGetLastError PKV_VENDOR(GetLastError)
#define gpuGetDeviceCount PKV_VENDOR(GetDeviceCount)
#define gpuGetDeviceProperties PKV_VENDOR(GetDeviceProperties)
#define gpuRuntimeGetVersion PKV_VENDOR(RuntimeGetVersion)
#define gpuGetDevice PKV_VENDOR(GetDevice)
#define gpuSetDevice PKV_VENDOR(SetDevice)
#define gpuMalloc PKV_VENDOR(Malloc)
#define gpuFree PKV_VENDOR(Free)
#define gpuMemcpyAsync PKV_VENDOR(MemcpyAsync)
#define gpuMemcpyDefault PKV_VENDOR(MemcpyDefault)
#define gpuMemsetAsync PKV_VENDOR(MemsetAsync)
#define gpuStreamDestroy PKV_VENDOR(StreamDestroy)
#define gpuStreamSynchronize PKV_VENDOR(StreamSynchronize)
#define gpuStreamWaitEvent PKV_VENDOR(StreamWaitEvent)
#define gpuEventRecord PKV_VENDOR(EventRecord)
#define gpuEventDestroy PKV_VENDOR(EventDestroy)
#endif

namespace PKV_GPU_NS {

#if !defined(PKV_GPU_HOST)
// -1: this runtime does not tell.
template <class Attribute>
int gpu_attribute(int ordinal, Attribute attribute) {
  int value = -1;
  if (PKV_VENDOR(DeviceGetAttribute)(&value, attribute, ordinal) == gpuSuccess) return value;
  (void)gpuGetLastError();
  return -1;
}

// Host memory that kernels read and write at the same address.
#if defined(PKV_GPU_HIP)
inline gpuError_t gpu_host_alloc(void** out, std::size_t bytes, gpu::HostMemory kind) {
  if (kind == gpu::HostMemory::kManaged) {
    return hipMallocManaged(out, bytes, hipMemAttachGlobal);
  }
  const unsigned grain =
      kind == gpu::HostMemory::kPinnedCoarse ? hipHostMallocNonCoherent : hipHostMallocCoherent;
  return hipHostMalloc(out, bytes, hipHostMallocMapped | hipHostMallocPortable | grain);
}
inline gpuError_t gpu_host_free(void* data, gpu::HostMemory kind) {
  return kind == gpu::HostMemory::kManaged ? hipFree(data) : hipHostFree(data);
}
// What decides on the kind of host memory. Runtimes up to 5.1 have no FineGrainSupport.
inline gpu::MemoryAttributes gpu_memory_attributes(int ordinal) {
  gpu::MemoryAttributes result;
  result.unified_addressing = gpu_attribute(ordinal, hipDeviceAttributeUnifiedAddressing);
  result.can_map_host_memory = gpu_attribute(ordinal, hipDeviceAttributeCanMapHostMemory);
  result.integrated = gpu_attribute(ordinal, hipDeviceAttributeIntegrated);
  result.concurrent_managed_access =
      gpu_attribute(ordinal, hipDeviceAttributeConcurrentManagedAccess);
  result.fine_grain_support = gpu_attribute(ordinal, hipDeviceAttributeFineGrainSupport);
  return result;
}
#else
inline gpuError_t gpu_host_alloc(void** out, std::size_t bytes) {
  return cudaHostAlloc(out, bytes, cudaHostAllocMapped | cudaHostAllocPortable);
}
inline gpuError_t gpu_host_free(void* data) { return cudaFreeHost(data); }
inline gpu::MappedMemory gpu_mapped_memory(int ordinal) {
  gpu::MappedMemory result;
  result.unified_addressing = gpu_attribute(ordinal, cudaDevAttrUnifiedAddressing);
  result.can_map_host_memory = gpu_attribute(ordinal, cudaDevAttrCanMapHostMemory);
  result.reads_registered = gpu_attribute(ordinal, cudaDevAttrCanUseHostPointerForRegisteredMem);
  return result;
}
#endif
inline gpuError_t gpu_stream_create(gpuStream_t* out) {
  return PKV_VENDOR(StreamCreateWithFlags)(out, PKV_VENDOR(StreamNonBlocking));
}
inline gpuError_t gpu_stream_capturing(gpuStream_t stream, int32_t* out) {
#if defined(PKV_GPU_HIP)
  hipStreamCaptureStatus status = hipStreamCaptureStatusNone;
  const gpuError_t error = hipStreamIsCapturing(stream, &status);
  *out = status == hipStreamCaptureStatusActive ? 1 : 0;
#else
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  const gpuError_t error = cudaStreamIsCapturing(stream, &status);
  *out = status == cudaStreamCaptureStatusActive ? 1 : 0;
#endif
  return error;
}
inline gpuError_t gpu_event_create(gpuEvent_t* out) {
  return PKV_VENDOR(EventCreateWithFlags)(out, PKV_VENDOR(EventDisableTiming));
}
// What the runtime says of a failed call, once: the next call does not report it again.
inline const char* gpu_error_text(gpuError_t error) {
  (void)gpuGetLastError();
  return gpuGetErrorString(error);
}

PKV_DEVICE int thread_index() { return static_cast<int>(threadIdx.x); }
PKV_DEVICE int block_size() { return static_cast<int>(blockDim.x); }
PKV_DEVICE unsigned block_x() { return blockIdx.x; }
PKV_DEVICE unsigned block_y() { return blockIdx.y; }
PKV_DEVICE unsigned grid_x() { return gridDim.x; }
PKV_DEVICE unsigned grid_y() { return gridDim.y; }
#endif

// What a launch needs beside its arguments.
struct LaunchShape {
  unsigned grid_x = 1;  // up to 2^31 - 1; 0 in either: nothing is launched
  unsigned grid_y = 1;  // up to 65,535
  int threads = 64;     // a multiple of 64, as PKV_KERNEL says
  int64_t dynamic_bytes = 0;
  bool is_cooperative = false;  // all blocks are resident, and may wait for each other
};

// Blocks along y for `rows`, whose kernel walks the rest: row = block_y(); row < rows; += grid_y().
inline unsigned grid_rows(int64_t rows) {
  return static_cast<unsigned>(rows < 65535 ? rows : 65535);
}
// Blocks along x for `items`, `per_block` each, at most `most`.
inline unsigned grid_tiles(int64_t items, int64_t per_block, int64_t most = INT32_MAX) {
  const int64_t tiles = (items + per_block - 1) / per_block;
  return static_cast<unsigned>(tiles < most ? tiles : most);
}

// Counts a launch, for the device option `paths`.
void note_launch(const char* kernel);

// Enqueues kernel(arguments..). `name` stands in texts. Dynamic shared memory above 48 KiB is asked
// for here, which CUDA and HIP want; it is rounded up to 16 bytes, since ptxas loads the rest of an
// array's last 16 where the source reads less.
template <class... P, class... A>
gpuError_t launch(const char* name, void (*kernel)(P...), const LaunchShape& shape,
                  gpuStream_t stream, A&&... arguments) {
  if (shape.grid_x == 0 || shape.grid_y == 0) return gpuSuccess;
  note_launch(name);
#if defined(PKV_GPU_HOST)
  return run_on_host(stream,
                     {name,
                      {shape.grid_x, shape.grid_y},
                      shape.threads,
                      shape.dynamic_bytes,
                      shape.is_cooperative},
                     // by value: a stream may run it later
                     [kernel, values = std::tuple<std::decay_t<P>...>(
                                  std::forward<A>(arguments)...)] { std::apply(kernel, values); });
#else
  std::tuple<std::decay_t<P>...> values(std::forward<A>(arguments)...);
  void* pointers[sizeof...(P) + 1] = {};
  std::apply(
      [&pointers](auto&... value) {
        int i = 0;
        ((pointers[i++] = &value), ...);
      },
      values);
  const void* function = reinterpret_cast<const void*>(kernel);
  if (shape.dynamic_bytes > (48 << 10)) {
    const gpuError_t error =
        PKV_VENDOR(FuncSetAttribute)(function, PKV_VENDOR(FuncAttributeMaxDynamicSharedMemorySize),
                                     static_cast<int>(shape.dynamic_bytes));
    if (error != gpuSuccess) return error;
  }
  const dim3 grid(shape.grid_x, shape.grid_y);
  const dim3 block(static_cast<unsigned>(shape.threads));
  const auto bytes = static_cast<std::size_t>(shape.dynamic_bytes + 15) / 16 * 16;
  if (shape.is_cooperative) {
    return PKV_VENDOR(LaunchCooperativeKernel)(function, grid, block, pointers,
                                               static_cast<unsigned>(bytes), stream);
  }
  return PKV_VENDOR(LaunchKernel)(function, grid, block, pointers, bytes, stream);
#endif
}

}  // namespace PKV_GPU_NS
