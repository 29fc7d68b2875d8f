// The device and its streams behind the table, shared by all GPU backends. The header that
// PKV_GPU_VENDOR names gives
//   kWholeStepKernel                                of a step in one go; "": there is none
//   kName, kVersion, kAbout, kScore, kDeviceType, kKernelFault (status of a failed launch)
//   struct VendorDevice, default constructible: what an open device has of its own
//   describe_device(host, ordinal, out)             lanes, memory_bytes, name
//   open_vendor(host, ordinal, device)              or why the device is of no use
//   alloc_memory(device, is_host, out, bytes), free_memory(device, is_host, data)
//   create_stream(device, out)
//   wrap_stream(device, native, out, is_owned)      false: there is no such stream
//   set_device_option(host, device, name, value)
#pragma once

#include <cstdint>

#include "backends/gpu/gpu_rt.h"
#include "pariskv/pariskv_backend.h"
#include "pariskv/pariskv_backend.hpp"
#include PKV_GPU_VENDOR

namespace PKV_GPU_NS {

// Each backend has its own type behind pkv_backend_device, so it is never defined.
struct Device {
  Device(const pkv_host* of_host, int of_ordinal) : host(of_host), ordinal(of_ordinal) {}

  const pkv_host* host;
  int ordinal;
  VendorDevice vendor;
};
struct StreamHandle {
  gpuStream_t native;
  bool is_owned;
};

inline Device& device_of(pkv_backend_device* device) { return *reinterpret_cast<Device*>(device); }
inline gpuStream_t native_of(pkv_backend_stream* stream) {
  return reinterpret_cast<StreamHandle*>(stream)->native;
}

// PKV_OK, or the status of a vendor's error, with a text that begins with `what`.
pkv_status status_of(const pkv_host* host, const char* what, gpuError_t error);

// Makes a device the thread's current one, and the one before current again.
class CurrentDevice {
 public:
  explicit CurrentDevice(const Device& device) {
    (void)gpuGetDevice(&before_);
    if (before_ != device.ordinal) (void)gpuSetDevice(device.ordinal);
    now_ = device.ordinal;
  }
  ~CurrentDevice() {
    if (before_ != now_) (void)gpuSetDevice(before_);
  }
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;

 private:
  int before_ = 0;
  int now_ = 0;
};

// What every `run` slot is: `enqueue` launches on the stream and returns the first error.
//   return run_stage(device, stream, "vote", [&](gpuStream_t stream) { ..; return launch(..); });
template <class Enqueue>
pkv_status run_stage(pkv_backend_device* device, pkv_backend_stream* stream, const char* stage,
                     const Enqueue& enqueue) {
  Device& d = device_of(device);
  return backend::guard(d.host, [&] {
    const CurrentDevice current(d);
    return status_of(d.host, stage, enqueue(native_of(stream)));
  });
}

// The table that pkv_backend_query returns.
const pkv_backend* table();

}  // namespace PKV_GPU_NS
