// A backend whose file name says what is wrong with it: pariskv_backend_<name>[.<fault>].so. Tests
// copy it under the names they need. Without a fault it is a device of plain host memory that runs
// no stage.
#include <dlfcn.h>

#include <cstdlib>
#include <cstring>
#include <string>

#include "core/format/records.h"
#include "pariskv/pariskv_backend.h"

struct pkv_backend_device {
  const pkv_host* host;
};
struct pkv_backend_stream {};
struct pkv_backend_event {};

namespace {

std::string name;
std::string fault;

bool has(const char* text) { return fault == text; }

pkv_status refuse(const pkv_host* host, pkv_status status, const char* text) {
  host->report(host, text);
  return status;
}

pkv_status device_count(const pkv_host* host, int32_t* out) {
  if (has("no_driver")) return refuse(host, PKV_UNAVAILABLE, "the driver is 3 years too old");
  *out = has("no_device") ? 0 : has("negative") ? -1 : 2;
  return PKV_OK;
}

pkv_status device_info(const pkv_host* host, int32_t ordinal, pkv_backend_device_info* out) {
  if (has("no_info")) return refuse(host, PKV_UNAVAILABLE, "the device fell off");
  out->device_type = PKV_DEVICE_CPU;
  out->lanes = 1;
  std::memset(out->name, 'x', sizeof(out->name));  // no NUL: the host has to see to it
  out->device_id = ordinal;
  return PKV_OK;
}

pkv_status device_open(const pkv_host* host, int32_t, pkv_backend_device** out) {
  if (has("no_open")) return PKV_UNAVAILABLE;  // and says nothing
  if (has("null_device")) return PKV_OK;
  host->log(host, 2, "fake device opened");
  *out = new pkv_backend_device{host};
  return PKV_OK;
}
void device_close(pkv_backend_device* device) { delete device; }

pkv_status memory_alloc(pkv_backend_device* device, int32_t, int64_t bytes, void** out) {
  if (has("odd_status")) return 99;
  if (has("null_memory")) return PKV_OK;
  if (bytes > 1 << 20) return refuse(device->host, PKV_RESOURCE_EXHAUSTED, "1 MiB is all there is");
  *out = std::aligned_alloc(256, static_cast<std::size_t>((bytes + 511) / 256 * 256));
  if (has("misaligned")) *out = static_cast<char*>(*out) + 8;
  return PKV_OK;
}
void memory_free(pkv_backend_device*, int32_t, void* data, int64_t) {
  std::free(reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(data) / 256 * 256));
}
pkv_status memory_copy(pkv_backend_device*, pkv_backend_stream*, void* target, const void* source,
                       int64_t bytes) {
  std::memmove(target, source, static_cast<std::size_t>(bytes));
  return PKV_OK;
}
pkv_status memory_fill(pkv_backend_device*, pkv_backend_stream*, void* target, int32_t byte,
                       int64_t bytes) {
  std::memset(target, byte, static_cast<std::size_t>(bytes));
  return PKV_OK;
}

pkv_status stream_create(pkv_backend_device*, pkv_backend_stream** out) {
  if (!has("null_stream")) *out = new pkv_backend_stream;
  return PKV_OK;
}
pkv_status stream_wrap(pkv_backend_device*, uintptr_t, pkv_backend_stream** out) {
  *out = new pkv_backend_stream;
  return PKV_OK;
}
void stream_destroy(pkv_backend_device*, pkv_backend_stream* stream) { delete stream; }
pkv_status stream_sync(pkv_backend_device* device, pkv_backend_stream*) {
  if (has("lost")) return refuse(device->host, PKV_UNAVAILABLE, "device lost at 0x40");
  return PKV_OK;
}
pkv_status event_create(pkv_backend_device*, pkv_backend_event** out) {
  if (!has("null_event")) *out = new pkv_backend_event;
  return PKV_OK;
}
void event_destroy(pkv_backend_device*, pkv_backend_event* event) { delete event; }
pkv_status event_record(pkv_backend_device*, pkv_backend_stream*, pkv_backend_event*) {
  return PKV_OK;
}
pkv_status event_wait(pkv_backend_device*, pkv_backend_stream*, pkv_backend_event*) {
  return PKV_OK;
}

pkv_status store_row_bytes(pkv_backend_device* device, const pkv_geometry*, int64_t, int64_t*) {
  return refuse(device->host, PKV_UNIMPLEMENTED, "no store");
}
pkv_status store_import(pkv_backend_device*, pkv_backend_stream*, const pkv_geometry*,
                        const pkv_store*, int64_t, int64_t, int64_t, const pkv_records*) {
  return PKV_UNIMPLEMENTED;
}

template <class Args>
pkv_status supports(pkv_backend_device* device, const Args*) {
  return refuse(device->host, PKV_UNIMPLEMENTED, "no stage");
}
template <class Args>
pkv_status scratch_bytes(pkv_backend_device*, const Args*, int64_t*) {
  return PKV_UNIMPLEMENTED;
}
template <class Args>
pkv_status run(pkv_backend_device*, pkv_backend_stream*, const Args*, void*) {
  return PKV_UNIMPLEMENTED;
}

// A slot that must not be called.
pkv_status never(const pkv_host*, int32_t*) { std::abort(); }

void fill(pkv_backend& t, const pkv_host* host) {
  t = {};
  t.struct_size = sizeof(t);
  t.abi_major = PKV_BACKEND_ABI_MAJOR;
  t.abi_minor = PKV_BACKEND_ABI_MINOR;
  t.build_flags = host->build_flags;
  t.format_version = pkv::format::kFormatVersion;
  t.score = has("best") ? 1000000 : -1;
  t.name = name.c_str();
  t.version = "7.5 \"fake\"\n";
  t.about = "for tests";
  t.device_count = device_count;
  t.device_info = device_info;
  t.device_open = device_open;
  t.device_close = device_close;
  t.memory_alloc = memory_alloc;
  t.memory_free = memory_free;
  t.memory_copy = memory_copy;
  t.memory_fill = memory_fill;
  t.stream_create = stream_create;
  t.stream_wrap = stream_wrap;
  t.stream_destroy = stream_destroy;
  t.stream_sync = stream_sync;
  t.event_create = event_create;
  t.event_destroy = event_destroy;
  t.event_record = event_record;
  t.event_wait = event_wait;
  t.store_row_bytes = store_row_bytes;
  t.store_import = store_import;
  t.store_export = store_import;
  t.fit = {supports, scratch_bytes, run};
  t.encode = {supports, scratch_bytes, run};
  t.vote = {supports, scratch_bytes, run};
  t.select = {supports, scratch_bytes, run};
  t.rerank = {supports, scratch_bytes, run};
  t.fetch = {supports, scratch_bytes, run};
  t.attend = {supports, scratch_bytes, run};
}

void spoil(pkv_backend& t) {
  const bool must_not_run = has("other_major") || has("small_table") || has("other_format") ||
                            has("asan") || has("tsan") || has("bad_name") || has("null_name");
  if (must_not_run) t.device_count = never;
  if (has("other_major")) {
    t.abi_major = PKV_BACKEND_ABI_MAJOR + 4;
    t.abi_minor = 3;
    t.name = reinterpret_cast<const char*>(16);  // another layout: nothing else may be read
  }
  if (has("newer_minor")) {
    t.abi_minor = PKV_BACKEND_ABI_MINOR + 9;
    t.struct_size = sizeof(t) + 64;
  }
  if (has("small_table")) t.struct_size = sizeof(t) - 8;
  if (has("other_format")) t.format_version = 77;
  if (has("asan")) t.build_flags ^= PKV_BUILD_ASAN;
  if (has("tsan")) t.build_flags ^= PKV_BUILD_TSAN;
  if (has("debug")) t.build_flags ^= PKV_BUILD_DEBUG;
  if (has("bad_name")) t.name = "Fake Backend";
  if (has("null_name")) t.name = nullptr;
  if (has("auto_name")) t.name = "auto";
  if (has("null_texts")) t.version = t.about = nullptr;
  if (has("cpu_ref_name")) t.name = "cpu_ref";
  if (fault.rfind("slot", 0) == 0) {  // "slot<number>": that function pointer is missing
    const int slot = std::atoi(fault.c_str() + 4);
    std::memset(reinterpret_cast<char*>(&t.device_count) + slot * sizeof(void*), 0, sizeof(void*));
  }
}

}  // namespace

extern "C" PKV_API const pkv_backend* pkv_backend_query(uint32_t host_max_abi,
                                                        const pkv_host* host) {
  static pkv_backend table;
  Dl_info self;
  if (dladdr(reinterpret_cast<void*>(&pkv_backend_query), &self) == 0) return nullptr;
  std::string file = self.dli_fname;
  file = file.substr(file.rfind("pariskv_backend_") + std::strlen("pariskv_backend_"));
  file.resize(file.size() - std::strlen(".so"));
  const std::size_t dot = file.find('.');
  name = file.substr(0, dot);
  fault = dot == std::string::npos ? "" : file.substr(dot + 1);
  if (has("refuses")) {
    host->report(host, "needs interface 1.4");
    return nullptr;
  }
  if (has("silent")) return nullptr;
  if (host_max_abi != (PKV_BACKEND_ABI_MAJOR << 16 | PKV_BACKEND_ABI_MINOR)) return nullptr;
  fill(table, host);
  spoil(table);
  return &table;
}
