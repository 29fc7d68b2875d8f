// Discovery, memory, streams and events, plainly, on the host: one device whose work is done when a
// slot returns. Replace each body by the vendor's calls; convert a vendor's error code where the
// call is made, into a status and a sentence (backend::refuse), and keep exceptions inside
// (backend::guard).
#include "backends/template/device.h"

#include <cstdio>
#include <cstring>
#include <memory>
#include <new>

#include "pariskv/pariskv_backend.hpp"

namespace pkv::template_backend {
namespace {

using backend::guard;
using backend::refuse;

constexpr std::align_val_t kAlignment{256};

// ---- Discovery: called before any device is open, so it must be cheap and must not fail for want
// of a driver. No driver: PKV_UNAVAILABLE with the reason, which `pariskv info` shows.

pkv_status device_count(const pkv_host* /*host*/, int32_t* out) {
  *out = 1;
  return PKV_OK;
}

pkv_status check_ordinal(const pkv_host* host, int32_t ordinal) {
  if (ordinal == 0) return PKV_OK;
  return refuse(host, PKV_OUT_OF_RANGE, "device ordinal=%d: there is device 0 only", ordinal);
}

pkv_status device_info(const pkv_host* host, int32_t ordinal, pkv_backend_device_info* out) {
  const pkv_status status = check_ordinal(host, ordinal);
  if (status != PKV_OK) return status;
  out->device_type = PKV_DEVICE_CPU;  // of tensors that callers pass: PKV_DEVICE_CUDA, ..
  out->device_id = 0;
  out->lanes = 1;
  out->memory_bytes = 0;  // not known
  std::snprintf(out->name, sizeof out->name, "host");
  return PKV_OK;
}

pkv_status device_open(const pkv_host* host, int32_t ordinal, pkv_backend_device** out) {
  return guard(host, [&] {
    const pkv_status status = check_ordinal(host, ordinal);
    if (status != PKV_OK) return status;
    *out = std::make_unique<pkv_backend_device>(pkv_backend_device{host}).release();
    return pkv_status{PKV_OK};
  });
}

void device_close(pkv_backend_device* device) { std::unique_ptr<pkv_backend_device>{device}; }

// ---- Memory: aligned to 256. kind PKV_MEMORY_DEVICE, or PKV_MEMORY_HOST: host memory that kernels
// read in place (pinned and mapped); a platform that cannot do that refuses with PKV_UNIMPLEMENTED.

pkv_status memory_alloc(pkv_backend_device* device, int32_t /*kind*/, int64_t bytes, void** out) {
  *out = ::operator new(static_cast<size_t>(bytes), kAlignment, std::nothrow);
  if (*out != nullptr) return PKV_OK;
  return refuse(device->host, PKV_RESOURCE_EXHAUSTED, "out of memory on the host: bytes=%lld",
                static_cast<long long>(bytes));
}

void memory_free(pkv_backend_device* /*device*/, int32_t /*kind*/, void* data, int64_t /*bytes*/) {
  ::operator delete(data, kAlignment);
}

// In stream order, between any two of host and device.
pkv_status memory_copy(pkv_backend_device* /*device*/, pkv_backend_stream* /*stream*/, void* target,
                       const void* source, int64_t bytes) {
  if (bytes > 0) std::memcpy(target, source, static_cast<size_t>(bytes));
  return PKV_OK;
}

pkv_status memory_fill(pkv_backend_device* /*device*/, pkv_backend_stream* /*stream*/, void* target,
                       int32_t byte, int64_t bytes) {
  if (bytes > 0) std::memset(target, byte, static_cast<size_t>(bytes));
  return PKV_OK;
}

// ---- Streams and events. A created stream does not wait for the vendor's default stream.

pkv_status make_stream(pkv_backend_device* device, pkv_backend_stream value,
                       pkv_backend_stream** out) {
  return guard(device->host, [&] {
    *out = std::make_unique<pkv_backend_stream>(value).release();
    return pkv_status{PKV_OK};
  });
}

pkv_status stream_create(pkv_backend_device* device, pkv_backend_stream** out) {
  return make_stream(device, {0, false}, out);
}

// 0 is the vendor's default stream. The host has no streams of its own, so it is all there is here.
pkv_status stream_wrap(pkv_backend_device* device, uintptr_t native, pkv_backend_stream** out) {
  if (native == 0) return make_stream(device, {native, true}, out);
  return refuse(device->host, PKV_INVALID_ARGUMENT, "native stream=0x%llx: accepted: 0",
                static_cast<unsigned long long>(native));
}

void stream_destroy(pkv_backend_device* /*device*/, pkv_backend_stream* stream) {
  std::unique_ptr<pkv_backend_stream>{stream};
}

// Reports what went wrong in work that was enqueued before.
pkv_status stream_sync(pkv_backend_device* /*device*/, pkv_backend_stream* /*stream*/) {
  return PKV_OK;
}

pkv_status event_create(pkv_backend_device* device, pkv_backend_event** out) {
  return guard(device->host, [&] {
    *out = std::make_unique<pkv_backend_event>(pkv_backend_event{false}).release();
    return pkv_status{PKV_OK};
  });
}

void event_destroy(pkv_backend_device* /*device*/, pkv_backend_event* event) {
  std::unique_ptr<pkv_backend_event>{event};
}

pkv_status event_record(pkv_backend_device* /*device*/, pkv_backend_stream* /*stream*/,
                        pkv_backend_event* event) {
  event->is_recorded = true;
  return PKV_OK;
}

pkv_status event_wait(pkv_backend_device* /*device*/, pkv_backend_stream* /*stream*/,
                      pkv_backend_event* /*event*/) {
  return PKV_OK;
}

}  // namespace

void fill_device_slots(pkv_backend& table) {
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
}

}  // namespace pkv::template_backend
