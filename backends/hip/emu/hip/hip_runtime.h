// HIP's names on CUDA, for tests alone: the HIP build of the backend, compiled by nvcc, runs on an
// NVIDIA card as backend hip-emu. Only what backends/gpu uses is here. docs/hip.md, section 5.
//  - The card plays one device per architecture of the build, all on CUDA device 0. Environment:
//      PKV_HIP_EMU_DEVICE=gfx90a       that device alone
//      PKV_HIP_EMU_ARCH_NAME=gfx908    what devices say they are
//      PKV_HIP_EMU_ATTRIBUTES=hipDeviceAttributeIntegrated=1,..  what devices report, besides
//  - An architecture of 64 lanes is played by pairs of 32: lane group operations take the lanes'
//    numbers from 0 to 63, as hardware does, and give noise for lanes outside the caller's group.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

using hipError_t = cudaError_t;
using hipStream_t = cudaStream_t;
using hipEvent_t = cudaEvent_t;
using hipStreamCaptureStatus = cudaStreamCaptureStatus;
struct hipDeviceProp_t : cudaDeviceProp {
  char gcnArchName[64];
  int hip_emu_lanes;
};
enum hipDeviceAttribute_t {
  hipDeviceAttributeUnifiedAddressing,
  hipDeviceAttributeCanMapHostMemory,
  hipDeviceAttributeIntegrated,
  hipDeviceAttributeConcurrentManagedAccess,
  hipDeviceAttributeFineGrainSupport,
};

#define hipSuccess cudaSuccess
#define hipErrorInvalidValue cudaErrorInvalidValue
#define hipErrorMemoryAllocation cudaErrorMemoryAllocation
#define hipErrorNoDevice cudaErrorNoDevice
#define hipGetErrorString cudaGetErrorString
#define hipGetLastError cudaGetLastError
#define hipMalloc cudaMalloc
#define hipFree cudaFree
#define hipMemcpyAsync cudaMemcpyAsync
#define hipMemcpyDefault cudaMemcpyDefault
#define hipMemsetAsync cudaMemsetAsync
#define hipStreamCreateWithFlags cudaStreamCreateWithFlags
#define hipStreamNonBlocking cudaStreamNonBlocking
#define hipStreamDestroy cudaStreamDestroy
#define hipStreamSynchronize cudaStreamSynchronize
#define hipStreamWaitEvent cudaStreamWaitEvent
#define hipStreamIsCapturing cudaStreamIsCapturing
#define hipStreamCaptureStatusNone cudaStreamCaptureStatusNone
#define hipStreamCaptureStatusActive cudaStreamCaptureStatusActive
#define hipEventCreateWithFlags cudaEventCreateWithFlags
#define hipEventDisableTiming cudaEventDisableTiming
#define hipEventRecord cudaEventRecord
#define hipEventDestroy cudaEventDestroy
#define hipMemAttachGlobal cudaMemAttachGlobal
#define hipMallocManaged cudaMallocManaged
#define hipHostMallocMapped cudaHostAllocMapped
#define hipHostMallocPortable cudaHostAllocPortable
#define hipHostMallocCoherent 0U
#define hipHostMallocNonCoherent 0U
#define hipHostMalloc cudaHostAlloc
#define hipHostFree cudaFreeHost
#define hipFuncSetAttribute cudaFuncSetAttribute
#define hipFuncAttributeMaxDynamicSharedMemorySize cudaFuncAttributeMaxDynamicSharedMemorySize
#define hipLaunchKernel cudaLaunchKernel
#define hipLaunchCooperativeKernel cudaLaunchCooperativeKernel

namespace hip_emu {

struct Architecture {
  const char* name;
  int lanes;
};
#define PKV_HIP_ARCHITECTURE(name) {#name, #name[3] == '9' ? 64 : 32},
inline constexpr Architecture kArchitectures[] = {PKV_HIP_ARCHITECTURES};
#undef PKV_HIP_ARCHITECTURE
inline constexpr int kCount = sizeof kArchitectures / sizeof kArchitectures[0];

inline thread_local int current = 0;

// The device's entry; nullptr beyond the last.
inline const Architecture* device(int ordinal) {
  const char* only = std::getenv("PKV_HIP_EMU_DEVICE");
  for (const Architecture& one : kArchitectures) {
    if ((only == nullptr || std::strcmp(only, one.name) == 0) && ordinal-- == 0) return &one;
  }
  return nullptr;
}
// -1: the environment says nothing.
inline int overridden(const char* attribute) {
  const char* text = std::getenv("PKV_HIP_EMU_ATTRIBUTES");
  const char* found = text == nullptr ? nullptr : std::strstr(text, attribute);
  return found == nullptr ? -1 : std::atoi(found + std::strlen(attribute) + 1);
}
inline int pick(const char* attribute, int otherwise) {
  const int value = overridden(attribute);
  return value < 0 ? otherwise : value;
}

}  // namespace hip_emu

inline hipError_t hipGetDeviceCount(int* out) {
  const cudaError_t error = cudaGetDeviceCount(out);
  if (error != cudaSuccess || *out == 0) return error;
  *out = 0;
  while (hip_emu::device(*out) != nullptr) ++*out;
  return cudaSuccess;
}
inline hipError_t hipGetDevice(int* out) {
  *out = hip_emu::current;
  return cudaSuccess;
}
inline hipError_t hipSetDevice(int ordinal) {
  if (hip_emu::device(ordinal) == nullptr) return cudaErrorInvalidDevice;
  hip_emu::current = ordinal;
  return cudaSetDevice(0);
}
inline hipError_t hipGetDeviceProperties(hipDeviceProp_t* out, int ordinal) {
  const hip_emu::Architecture* device = hip_emu::device(ordinal);
  if (device == nullptr) return cudaErrorInvalidDevice;
  const cudaError_t error = cudaGetDeviceProperties(out, 0);
  out->hip_emu_lanes = hip_emu::pick("hipDeviceAttributeWarpSize", device->lanes);
  const char* other = std::getenv("PKV_HIP_EMU_ARCH_NAME");
  std::snprintf(out->gcnArchName, sizeof out->gcnArchName, "%s",
                other == nullptr ? device->name : other);
  return error;
}
inline hipError_t hipRuntimeGetVersion(int* out) {
  *out = 0;  // 0.0: no HIP
  return cudaSuccess;
}
inline hipError_t hipDeviceGetAttribute(int* out, hipDeviceAttribute_t attribute, int) {
  constexpr cudaDeviceAttr kNone{};
  const struct {
    const char* name;
    cudaDeviceAttr same;
    int otherwise;
  } known[] = {
      {"hipDeviceAttributeUnifiedAddressing", cudaDevAttrUnifiedAddressing, 0},
      {"hipDeviceAttributeCanMapHostMemory", cudaDevAttrCanMapHostMemory, 0},
      {"hipDeviceAttributeIntegrated", cudaDevAttrIntegrated, 0},
      {"hipDeviceAttributeConcurrentManagedAccess", cudaDevAttrConcurrentManagedAccess, 0},
      {"hipDeviceAttributeFineGrainSupport", kNone, 1},
  };
  const auto& entry = known[attribute];
  int value = entry.otherwise;
  if (entry.same != kNone) {
    const cudaError_t error = cudaDeviceGetAttribute(&value, entry.same, 0);
    if (error != cudaSuccess) return error;
  }
  *out = hip_emu::pick(entry.name, value);
  return cudaSuccess;
}

namespace hip_emu {

// What a lane outside the caller's group seems to say.
template <class T>
__device__ __forceinline__ T noise(T value) {
  return ~value ^ static_cast<T>(0x5a5a5a5aU);
}
// The lanes of the caller's group of `size` in the warp of 32 that plays half of a wave of 64.
__device__ __forceinline__ unsigned members(int size) {
  const unsigned first = threadIdx.x % 32 / size * size;
  return static_cast<unsigned>((1ULL << size) - 1) << first;
}
__device__ __forceinline__ unsigned long long ballot(int lanes, int size, bool predicate) {
  const unsigned mine = members(size);
  const unsigned said = __ballot_sync(mine, predicate);
  const unsigned half = said | (noise(said) & ~mine);
  if (lanes == 32) return half;
  const unsigned long long other = noise(said);
  return threadIdx.x % 64 < 32 ? half | other << 32
                               : other | static_cast<unsigned long long>(half) << 32;
}
template <class T>
__device__ __forceinline__ T shuffle(int lanes, int size, T value, int source, int width) {
  const int lane = static_cast<int>(threadIdx.x) % lanes;
  const int wanted = lane / width * width + (source & (width - 1));
  const bool is_there = wanted / size == lane / size;
  const T got = __shfl_sync(members(size), value, (is_there ? wanted : lane) % 32, 32);
  return is_there ? got : noise(value);
}

}  // namespace hip_emu

// Inside LaneGroup (backends/gpu/gpu_lanes.cuh), whose kSize says which lanes come together: a warp
// of CUDA must be told, a wave of HIP need not.
constexpr int hip_emu_lanes = PKV_HIP_LANES;
#define warpSize hip_emu_lanes
#define __ballot(predicate) ::hip_emu::ballot(PKV_HIP_LANES, kSize, predicate)
#define __shfl(value, source, width) ::hip_emu::shuffle(PKV_HIP_LANES, kSize, value, source, width)
#define __builtin_amdgcn_fence(order, scope) __threadfence_block()
#define __builtin_amdgcn_wave_barrier() __syncwarp(::hip_emu::members(kSize))
#define __builtin_amdgcn_s_sleep(ticks) static_cast<void>(0)
#define __HIP_MEMORY_SCOPE_AGENT 0
#define __hip_atomic_store(target, value, order, scope) \
  static_cast<void>(*const_cast<volatile uint64_t*>(target) = (value))
#define __hip_atomic_load(source, order, scope) *const_cast<const volatile uint64_t*>(source)
