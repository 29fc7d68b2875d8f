// The CPU backend's table: one device (the host), its memory, its options, and streams that never
// have anything left to do, since every slot is done when it returns.
#include "backends/cpu/device.h"

#include <sys/mman.h>
#include <unistd.h>

#include <charconv>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>
#include <new>
#include <string>
#include <string_view>

#include "backends/cpu/stages.h"
#include "backends/cpu/store.h"
#include "core/format/records.h"
#include "pariskv/pariskv_backend.hpp"

// Handles without state; each is an object of its own.
struct pkv_backend_stream {};
struct pkv_backend_event {};

namespace pkv::cpu {
namespace {

using backend::guard;
using backend::refuse;

constexpr std::align_val_t kAlignment{256};
// Large blocks begin at a huge page, so that gathers of records miss the TLB less.
constexpr std::align_val_t kLargeAlignment{int64_t{2} << 20};
constexpr int64_t kLargeBytes = int64_t{4} << 20;

std::align_val_t alignment_of(int64_t bytes) {
  return bytes >= kLargeBytes ? kLargeAlignment : kAlignment;
}

pkv_status check_ordinal(const pkv_host* host, int32_t ordinal) {
  if (ordinal == 0) return PKV_OK;
  return refuse(host, PKV_OUT_OF_RANGE, "device ordinal=%d: cpu has device 0 only", ordinal);
}

pkv_status device_count(const pkv_host* /*host*/, int32_t* out) {
  *out = 1;
  return PKV_OK;
}

// 0: not known.
int64_t memory_bytes() {
  const int64_t pages = sysconf(_SC_PHYS_PAGES);
  const int64_t page_bytes = sysconf(_SC_PAGESIZE);
  return pages > 0 && page_bytes > 0 ? pages * page_bytes : 0;
}

std::string processor_name() {
  constexpr std::string_view kKey = "model name";
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const std::size_t colon = line.find(": ");
    if (line.compare(0, kKey.size(), kKey) == 0 && colon != std::string::npos) {
      return line.substr(colon + 2);
    }
  }
  return "host";
}

pkv_status device_info(const pkv_host* host, int32_t ordinal, pkv_backend_device_info* out) {
  const pkv_status status = check_ordinal(host, ordinal);
  if (status != PKV_OK) return status;
  out->device_type = PKV_DEVICE_CPU;
  out->device_id = 0;
  out->lanes = 1;
  out->memory_bytes = memory_bytes();
  return guard(host, [out] {
    std::snprintf(out->name, sizeof out->name, "%s (%s)", processor_name().c_str(),
                  Isa::names().c_str());
    return pkv_status{PKV_OK};
  });
}

pkv_status device_open(const pkv_host* host, int32_t ordinal, pkv_backend_device** out) {
  return guard(host, [&] {
    const pkv_status status = check_ordinal(host, ordinal);
    if (status != PKV_OK) return status;
    // No smart pointer: each backend has its own pkv_backend_device, and a linker that finds two
    // destructors of unique_ptr<pkv_backend_device> keeps one.
    *out = new pkv_backend_device(host);
    return pkv_status{PKV_OK};
  });
}

void device_close(pkv_backend_device* device) { delete device; }

pkv_status memory_alloc(pkv_backend_device* device, int32_t /*kind*/, int64_t bytes, void** out) {
  *out = ::operator new(static_cast<size_t>(bytes), alignment_of(bytes), std::nothrow);
  if (*out != nullptr) {
#if defined(MADV_HUGEPAGE)
    if (bytes >= kLargeBytes) madvise(*out, static_cast<size_t>(bytes), MADV_HUGEPAGE);
#endif
    return PKV_OK;
  }
  return refuse(device->host, PKV_RESOURCE_EXHAUSTED, "out of memory on the host: bytes=%lld",
                static_cast<long long>(bytes));
}

void memory_free(pkv_backend_device* /*device*/, int32_t /*kind*/, void* data, int64_t bytes) {
  ::operator delete(data, alignment_of(bytes));
}

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

pkv_status stream_create(pkv_backend_device* device, pkv_backend_stream** out) {
  return guard(device->host, [&] {
    *out = std::make_unique<pkv_backend_stream>().release();
    return pkv_status{PKV_OK};
  });
}

pkv_status stream_wrap(pkv_backend_device* device, uintptr_t native, pkv_backend_stream** out) {
  if (native != 0) {
    return refuse(device->host, PKV_INVALID_ARGUMENT,
                  "native stream=0x%llx: the host has no streams of its own, only 0",
                  static_cast<unsigned long long>(native));
  }
  return stream_create(device, out);
}

void stream_destroy(pkv_backend_device* /*device*/, pkv_backend_stream* stream) {
  const std::unique_ptr<pkv_backend_stream> owner(stream);
}

pkv_status stream_sync(pkv_backend_device* /*device*/, pkv_backend_stream* /*stream*/) {
  return PKV_OK;
}

pkv_status event_create(pkv_backend_device* device, pkv_backend_event** out) {
  return guard(device->host, [&] {
    *out = std::make_unique<pkv_backend_event>().release();
    return pkv_status{PKV_OK};
  });
}

void event_destroy(pkv_backend_device* /*device*/, pkv_backend_event* event) {
  const std::unique_ptr<pkv_backend_event> owner(event);
}

pkv_status event_record(pkv_backend_device* /*device*/, pkv_backend_stream* /*stream*/,
                        pkv_backend_event* /*event*/) {
  return PKV_OK;
}

pkv_status event_wait(pkv_backend_device* /*device*/, pkv_backend_stream* /*stream*/,
                      pkv_backend_event* /*event*/) {
  return PKV_OK;
}

pkv_status set_threads(pkv_backend_device* device, std::string_view value) {
  int64_t count = -1;
  const char* end = value.data() + value.size();
  const auto parsed = std::from_chars(value.data(), end, count);
  if (parsed.ec == std::errc() && parsed.ptr == end) return device->pool.set_threads(count);
  return refuse(device->host, PKV_INVALID_ARGUMENT, "threads=%.64s: must be a number from 0 to %d",
                value.data(), kMaxThreads);
}

pkv_status device_set(pkv_backend_device* device, const char* name, const char* value) {
  return guard(device->host, [&] {
    if (std::string_view(name) == "threads") return set_threads(device, value);
    if (std::string_view(name) == "paths") return kernels.set(device->host, value);
    if (std::string_view(name) != "isa") {
      return refuse(device->host, PKV_INVALID_ARGUMENT,
                    "device option %.64s: cpu has threads, isa and paths", name);
    }
    if (device->isa.set(value)) return pkv_status{PKV_OK};
    return refuse(device->host, PKV_INVALID_ARGUMENT, "isa=%.64s: this host has best, %s", value,
                  Isa::names().c_str());
  });
}

pkv_status device_parallel(pkv_backend_device* device, const pkv_parallel* parallel) {
  return guard(device->host, [&] { return device->pool.set_runner(parallel); });
}

pkv_backend make_table() {
  pkv_backend table = {};
  table.struct_size = sizeof table;
  table.abi_major = PKV_BACKEND_ABI_MAJOR;
  table.abi_minor = PKV_BACKEND_ABI_MINOR;
  table.build_flags = backend::build_flags();
  table.format_version = format::kFormatVersion;
  table.score = 10;
  table.name = "cpu";
  table.version = "1";
  table.about = "SIMD and threads of the host";
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
  table.device_parallel = device_parallel;
  return table;
}

}  // namespace
}  // namespace pkv::cpu

extern "C" const pkv_backend* pkv_cpu_query(uint32_t host_max_abi, const pkv_host* host) {
  static const pkv_backend table = pkv::cpu::make_table();
  if (!pkv::backend::accepts_host(host_max_abi, host)) return nullptr;
  if (pkv::cpu::Isa::is_any()) return &table;
  pkv::backend::refuse(host, PKV_UNAVAILABLE,
                       "cpu: this processor has no instruction set it is for");
  return nullptr;
}
