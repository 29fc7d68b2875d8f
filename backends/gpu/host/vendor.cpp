#include "backends/gpu/host/vendor.h"

#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "backends/gpu/mapped_memory.h"
#include "pariskv/pariskv_backend.hpp"

namespace pkv::gpu_host {
namespace {

constexpr int64_t kApartBytes = int64_t{4} << 30;  // what it says; nothing holds it to that

bool parse(std::string_view text, uint64_t* out) {
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), *out);
  return parsed.ec == std::errc() && parsed.ptr == text.data() + text.size();
}

pkv_status set_mode(const pkv_host* host, WorkMode& mode, const char* name,
                    std::string_view value) {
  const bool is_streams = std::string_view(name) == "streams";
  if (is_streams && (value == "deferred" || value == "immediate")) {
    mode.is_deferred = value == "deferred";
  } else if (!is_streams && value == "capture") {
    mode.is_capturing = true;
    mode.graph.clear();
  } else if (!is_streams && value == "end") {
    mode.is_capturing = false;
  } else if (!is_streams && value == "launch" && !mode.is_capturing) {
    if (launch_graph(mode) == gpuSuccess) return PKV_OK;
    return backend::refuse(host, PKV_INTERNAL, "graph: %s", gpu_error_text(gpuErrorKernel));
  } else {
    return backend::refuse(host, PKV_INVALID_ARGUMENT, "%s=%.64s: must be %s", name, value.data(),
                           is_streams ? "deferred or immediate" : "capture, end or launch");
  }
  return PKV_OK;
}

}  // namespace

pkv_status describe_device(const pkv_host* /*host*/, int /*ordinal*/,
                           pkv_backend_device_info* out) {
  out->lanes = gpu_exec::Options().lanes;
  out->memory_bytes = 0;  // not known
  if (is_apart()) {
    out->device_type = PKV_DEVICE_CUDA;
    out->memory_bytes = kApartBytes;
  }
  std::snprintf(out->name, sizeof out->name, "kernel executor on the host");
  return PKV_OK;
}

pkv_status open_vendor(const pkv_host* host, int ordinal, VendorDevice& /*device*/) {
  const char* lacks = std::getenv("PKV_GPU_HOST_LACKS");
  const auto value_of = [lacks](std::string_view attribute) {
    return lacks != nullptr && lacks == attribute ? 0 : 1;
  };
  gpu::MappedMemory has;
  has.unified_addressing = value_of("UnifiedAddressing");
  has.can_map_host_memory = value_of("CanMapHostMemory");
  has.reads_registered = value_of("CanUseHostPointerForRegisteredMem");
  char name[32];
  std::snprintf(name, sizeof name, "device %d", ordinal);
  return gpu::check_mapped(host, name, "gpuDevAttr", has);
}

gpuError_t create_stream(VendorDevice& device, gpuStream_t* out) {
  const auto made = std::make_shared<Stream>();
  made->machine = &device.machine;
  made->mode = &device.mode;
  made->self = made;
  *out = made.get();
  return gpuSuccess;
}

bool wrap_stream(VendorDevice& device, uintptr_t native, gpuStream_t* out, bool* is_owned) {
  *is_owned = true;
  return native == 0 && create_stream(device, out) == gpuSuccess;
}

pkv_status set_device_option(const pkv_host* host, VendorDevice& device, const char* name,
                             const char* value) {
  if (std::string_view(name) == "streams" || std::string_view(name) == "graph") {
    return set_mode(host, device.mode, name, value);
  }
  gpu_exec::Options options = device.machine.options();
  uint64_t number = 0;
  const bool is_number = parse(value, &number);
  if (std::string_view(name) == "seed") {
    options.seed = number;
    if (!is_number) {
      return backend::refuse(host, PKV_INVALID_ARGUMENT, "seed=%.64s: must be a number", value);
    }
  } else if (std::string_view(name) == "lanes") {
    options.lanes = static_cast<int32_t>(number);
    if (!is_number || (number != 32 && number != 64)) {
      return backend::refuse(host, PKV_INVALID_ARGUMENT, "lanes=%.64s: must be 32 or 64", value);
    }
  } else {
    return backend::refuse(host, PKV_INVALID_ARGUMENT,
                           "device option %.64s: gpu-host has lanes, seed, streams and graph",
                           name);
  }
  device.machine.set_options(options);
  return PKV_OK;
}

}  // namespace pkv::gpu_host
