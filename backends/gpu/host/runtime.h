// The part of gpu_rt.h that is the host's: a runtime that has done everything when a call returns,
// unless its device defers or captures (work.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <new>
#include <string>
#include <tuple>
#include <utility>

#include "backends/gpu/host/apart.h"
#include "backends/gpu/host/exec.h"

#define PKV_DEVICE inline
#define PKV_KERNEL(...) void
// The address of a local of this instantiation names the piece.
#define PKV_SHARED(T, name)                                  \
  static const char name##_key = 0;                          \
  T& name = *static_cast<T*>(::pkv::gpu_exec::static_shared( \
      &name##_key, sizeof(T), alignof(T) < 16 ? 16 : alignof(T), ::pkv::gpu_exec::Site::here()))
#define PKV_DYNAMIC_SHARED(name) \
  unsigned char* const name = static_cast<unsigned char*>(::pkv::gpu_exec::dynamic_shared())

namespace pkv::gpu_host {

enum gpuError_t {
  gpuSuccess = 0,
  gpuErrorInvalidValue = 1,
  gpuErrorMemoryAllocation = 2,
  gpuErrorNoDevice = 3,
  gpuErrorKernel = 4,  // the executor found a fault
};

// A stream, and the event that marks a point of one (work.h).
struct Stream;
using gpuStream_t = Stream*;
struct Event;
using gpuEvent_t = Event*;
using Work = std::function<gpuError_t()>;
// Runs it now, or when the stream is waited for, or keeps it for a graph: as the device is set.
gpuError_t enqueue(gpuStream_t stream, Work work);
enum { gpuMemcpyDefault = 0 };

inline constexpr std::align_val_t kMemoryAlignment{256};

inline gpuError_t gpu_host_alloc(void** out, std::size_t bytes) {
  *out = ::operator new(bytes, kMemoryAlignment, std::nothrow);
  return *out == nullptr ? gpuErrorMemoryAllocation : gpuSuccess;
}
inline gpuError_t gpu_host_free(void* data) {
  ::operator delete(data, kMemoryAlignment);
  return gpuSuccess;
}
inline gpuError_t gpuMalloc(void** out, std::size_t bytes) {
  if (!is_apart()) return gpu_host_alloc(out, bytes);
  *out = apart_alloc(bytes);
  return *out == nullptr ? gpuErrorMemoryAllocation : gpuSuccess;
}
inline gpuError_t gpuFree(void* data) {
  if (!is_apart()) return gpu_host_free(data);
  apart_free(data);
  return gpuSuccess;
}

inline gpuError_t gpuGetDeviceCount(int* out) {
  *out = 1;
  return gpuSuccess;
}
inline gpuError_t gpuGetDevice(int* out) {
  *out = 0;
  return gpuSuccess;
}
inline gpuError_t gpuSetDevice(int /*ordinal*/) { return gpuSuccess; }

inline gpuError_t gpuMemcpyAsync(void* target, const void* source, std::size_t bytes, int /*kind*/,
                                 gpuStream_t stream) {
  return enqueue(stream, [=] {
    const Reach reach;
    std::memmove(target, source, bytes);
    return gpuSuccess;
  });
}
inline gpuError_t gpuMemsetAsync(void* target, int byte, std::size_t bytes, gpuStream_t stream) {
  return enqueue(stream, [=] {
    const Reach reach;
    std::memset(target, byte, bytes);
    return gpuSuccess;
  });
}
gpuError_t gpuStreamDestroy(gpuStream_t stream);
gpuError_t gpuStreamSynchronize(gpuStream_t stream);
gpuError_t gpuStreamWaitEvent(gpuStream_t stream, gpuEvent_t event, int flags);
gpuError_t gpu_stream_capturing(gpuStream_t stream, int32_t* out);
gpuError_t gpu_event_create(gpuEvent_t* out);
gpuError_t gpuEventRecord(gpuEvent_t event, gpuStream_t stream);
gpuError_t gpuEventDestroy(gpuEvent_t event);

// Enqueues a launch; what is wrong with the kernel is left for gpu_error_text of the thread that
// runs it.
gpuError_t run_on_host(gpuStream_t stream, const gpu_exec::Launch& launch,
                       std::function<void()> lane);
const char* gpu_error_text(gpuError_t error);

inline int thread_index() { return gpu_exec::thread_index(); }
inline int block_size() { return gpu_exec::block_size(); }
inline unsigned block_x() { return gpu_exec::block_index().x; }
inline unsigned block_y() { return gpu_exec::block_index().y; }
inline unsigned grid_x() { return gpu_exec::grid_size().x; }
inline unsigned grid_y() { return gpu_exec::grid_size().y; }

}  // namespace pkv::gpu_host
