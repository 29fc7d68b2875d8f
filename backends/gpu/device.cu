// The slots that are no stage: devices, memory, streams, events; and the table.
#include "backends/gpu/device.h"

#include <cstddef>
#include <iterator>
#include <memory>
#include <string_view>

#include "backends/gpu/cache.h"
#include "backends/gpu/kernels.h"
#include "backends/gpu/stages.h"
#include "backends/gpu/store.h"
#include "core/format/records.h"

namespace PKV_GPU_NS {
namespace {

using backend::guard;
using backend::refuse;

struct KernelNames {
  const char* all[std::size(gpu::kKernels) + 1];
};
constexpr KernelNames kernel_names() {
  KernelNames names{};
  std::size_t count = 0;
  for (const char* name : gpu::kKernels) names.all[count++] = name;
  names.all[count] = kWholeStepKernel;
  return names;
}
constexpr KernelNames kNames = kernel_names();
constinit backend::Paths kernels(kNames.all);

pkv_status device_count(const pkv_host* host, int32_t* out) {
  int count = 0;
  const gpuError_t error = gpuGetDeviceCount(&count);
  *out = 0;
  if (error == gpuErrorNoDevice) return PKV_OK;
  if (error != gpuSuccess) {
    return refuse(host, PKV_UNAVAILABLE, "%s: %s", kName, gpu_error_text(error));
  }
  *out = count;
  return PKV_OK;
}

pkv_status check_ordinal(const pkv_host* host, int32_t ordinal) {
  int32_t count = 0;
  const pkv_status status = device_count(host, &count);
  if (status != PKV_OK || (ordinal >= 0 && ordinal < count)) return status;
  return refuse(host, PKV_OUT_OF_RANGE, "device ordinal=%d: %s has %d devices", ordinal, kName,
                count);
}

pkv_status device_info(const pkv_host* host, int32_t ordinal, pkv_backend_device_info* out) {
  return guard(host, [&] {
    const pkv_status status = check_ordinal(host, ordinal);
    if (status != PKV_OK) return status;
    out->device_type = kDeviceType;
    out->device_id = ordinal;
    return describe_device(host, ordinal, out);
  });
}

pkv_status device_open(const pkv_host* host, int32_t ordinal, pkv_backend_device** out) {
  return guard(host, [&] {
    const pkv_status status = check_ordinal(host, ordinal);
    if (status != PKV_OK) return status;
    auto device = std::make_unique<Device>(host, ordinal);
    const pkv_status opened = open_vendor(host, ordinal, device->vendor);
    if (opened == PKV_OK) *out = reinterpret_cast<pkv_backend_device*>(device.release());
    return opened;
  });
}

void device_close(pkv_backend_device* device) { delete &device_of(device); }

pkv_status memory_alloc(pkv_backend_device* device, int32_t kind, int64_t bytes, void** out) {
  Device& d = device_of(device);
  const CurrentDevice current(d);
  const bool is_host = kind == PKV_MEMORY_HOST;
  const auto size = static_cast<std::size_t>(bytes);
  const gpuError_t error = alloc_memory(d.vendor, is_host, out, size);
  if (error == gpuSuccess) return PKV_OK;
  *out = nullptr;
  const pkv_status status =
      error == gpuErrorMemoryAllocation ? PKV_RESOURCE_EXHAUSTED : PKV_UNAVAILABLE;
  return refuse(d.host, status, "%s memory of device %d: bytes=%lld: %s",
                is_host ? "pinned host" : "device", d.ordinal, static_cast<long long>(bytes),
                gpu_error_text(error));
}

void memory_free(pkv_backend_device* device, int32_t kind, void* data, int64_t /*bytes*/) {
  Device& d = device_of(device);
  const CurrentDevice current(d);
  (void)free_memory(d.vendor, kind == PKV_MEMORY_HOST, data);
}

pkv_status memory_copy(pkv_backend_device* device, pkv_backend_stream* stream, void* target,
                       const void* source, int64_t bytes) {
  if (bytes == 0) return PKV_OK;
  return run_stage(device, stream, "copy", [&](gpuStream_t s) {
    return gpuMemcpyAsync(target, source, static_cast<std::size_t>(bytes), gpuMemcpyDefault, s);
  });
}

pkv_status memory_fill(pkv_backend_device* device, pkv_backend_stream* stream, void* target,
                       int32_t byte, int64_t bytes) {
  if (bytes == 0) return PKV_OK;
  return run_stage(device, stream, "fill", [&](gpuStream_t s) {
    return gpuMemsetAsync(target, byte, static_cast<std::size_t>(bytes), s);
  });
}

pkv_status stream_create(pkv_backend_device* device, pkv_backend_stream** out) {
  Device& d = device_of(device);
  return guard(d.host, [&] {
    const CurrentDevice current(d);
    gpuStream_t native{};
    const gpuError_t error = create_stream(d.vendor, &native);
    if (error != gpuSuccess) return status_of(d.host, "stream", error);
    *out = reinterpret_cast<pkv_backend_stream*>(new StreamHandle{native, true});
    return pkv_status{PKV_OK};
  });
}

pkv_status stream_wrap(pkv_backend_device* device, uintptr_t native, pkv_backend_stream** out) {
  Device& d = device_of(device);
  return guard(d.host, [&] {
    gpuStream_t stream{};
    bool is_owned = false;
    if (!wrap_stream(d.vendor, native, &stream, &is_owned)) {
      return refuse(d.host, PKV_INVALID_ARGUMENT,
                    "native stream=0x%llx: %s has none of its own, only 0",
                    static_cast<unsigned long long>(native), kName);
    }
    *out = reinterpret_cast<pkv_backend_stream*>(new StreamHandle{stream, is_owned});
    return pkv_status{PKV_OK};
  });
}

void stream_destroy(pkv_backend_device* device, pkv_backend_stream* stream) {
  const CurrentDevice current(device_of(device));
  auto* ours = reinterpret_cast<StreamHandle*>(stream);
  if (ours->is_owned) (void)gpuStreamDestroy(ours->native);
  delete ours;
}

pkv_status stream_sync(pkv_backend_device* device, pkv_backend_stream* stream) {
  return run_stage(device, stream, "stream", [](gpuStream_t s) { return gpuStreamSynchronize(s); });
}

pkv_status stream_capturing(pkv_backend_device* device, pkv_backend_stream* stream, int32_t* out) {
  return run_stage(device, stream, "stream",
                   [&](gpuStream_t s) { return gpu_stream_capturing(s, out); });
}

pkv_status event_create(pkv_backend_device* device, pkv_backend_event** out) {
  Device& d = device_of(device);
  return guard(d.host, [&] {
    const CurrentDevice current(d);
    gpuEvent_t native{};
    const gpuError_t error = gpu_event_create(&native);
    if (error != gpuSuccess) return status_of(d.host, "event", error);
    *out = reinterpret_cast<pkv_backend_event*>(native);
    return pkv_status{PKV_OK};
  });
}

void event_destroy(pkv_backend_device* device, pkv_backend_event* event) {
  const CurrentDevice current(device_of(device));
  (void)gpuEventDestroy(reinterpret_cast<gpuEvent_t>(event));
}

pkv_status event_record(pkv_backend_device* device, pkv_backend_stream* stream,
                        pkv_backend_event* event) {
  return run_stage(device, stream, "event", [&](gpuStream_t s) {
    return gpuEventRecord(reinterpret_cast<gpuEvent_t>(event), s);
  });
}

pkv_status event_wait(pkv_backend_device* device, pkv_backend_stream* stream,
                      pkv_backend_event* event) {
  return run_stage(device, stream, "event", [&](gpuStream_t s) {
    return gpuStreamWaitEvent(s, reinterpret_cast<gpuEvent_t>(event), 0);
  });
}

pkv_status device_set(pkv_backend_device* device, const char* name, const char* value) {
  Device& d = device_of(device);
  return guard(d.host, [&] {
    if (std::string_view(name) == "paths") return kernels.set(d.host, value);
    return set_device_option(d.host, d.vendor, name, value);
  });
}

pkv_backend make_table() {
  pkv_backend table = {};
  table.struct_size = sizeof table;
  table.abi_major = PKV_BACKEND_ABI_MAJOR;
  table.abi_minor = PKV_BACKEND_ABI_MINOR;
  table.build_flags = backend::build_flags();
  table.format_version = format::kFormatVersion;
  table.score = kScore;
  table.name = kName;
  table.version = kVersion;
  table.about = kAbout;
  table.device_count = device_count;
  table.device_info = device_info;
  table.device_open = device_open;
  table.device_close = device_close;
  table.memory_alloc = memory_alloc;
  table.memory_free = memory_free;
  table.memory_copy = memory_copy;
  table.memory_fill = memory_fill;
  table.stream_create = stream_create;
  table.stream_wrap = stream_wrap;
  table.stream_destroy = stream_destroy;
  table.stream_sync = stream_sync;
  table.event_create = event_create;
  table.event_destroy = event_destroy;
  table.event_record = event_record;
  table.event_wait = event_wait;
  table.store_row_bytes = store_row_bytes;
  table.store_import = store_import;
  table.store_export = store_export;
  table.fit = fit_slots();
  table.encode = encode_slots();
  table.vote = vote_slots();
  table.select = select_slots();
  table.rerank = rerank_slots();
  table.fetch = fetch_slots();
  table.attend = attend_slots();
  table.step = step_slots();
  table.device_set = device_set;
  table.has_row_cache = 1;
  table.merge = merge_outputs;
  table.memory_words = memory_words;
  table.stream_capturing = stream_capturing;
  table.place = place;
  table.has_recent_rows = 1;
  table.advance = advance;
  return table;
}

}  // namespace

void note_launch(const char* kernel) { kernels.note(kernel); }

pkv_status status_of(const pkv_host* host, const char* what, gpuError_t error) {
  if (error == gpuSuccess) return PKV_OK;
  const pkv_status status =
      error == gpuErrorMemoryAllocation ? PKV_RESOURCE_EXHAUSTED : kKernelFault;
  return refuse(host, status, "%s: %s", what, gpu_error_text(error));
}

const pkv_backend* table() {
  static const pkv_backend table = make_table();
  return &table;
}

}  // namespace PKV_GPU_NS
