// A device with one stream: where a stage runs. All data goes through its own memory, so that a
// place may be any device.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "pariskv/pariskv_stages.h"

namespace pkv::conformance {

struct CloseRuntime {
  void operator()(pkv_runtime* runtime) const { pkv_runtime_destroy(runtime); }
};
struct CloseDevice {
  void operator()(pkv_device* device) const { pkv_device_close(device); }
};
struct CloseStream {
  void operator()(pkv_stream* stream) const { pkv_stream_destroy(stream); }
};
using Runtime = std::unique_ptr<pkv_runtime, CloseRuntime>;

// "INTERNAL: pkv_stream_sync: ..", with the text of the last error.
std::string error_text(const char* function, pkv_status status);
// Failure unless `status` is PKV_OK.
void require(const char* function, pkv_status status);

// Throws Unavailable. `sink` gets what backends log, and `user`; NULL: nobody does.
Runtime open_runtime(pkv_log_fn sink = nullptr, void* user = nullptr);
// The name of a backend: `wanted` itself, or, with a '/' in it, that of the library it names, which
// is loaded. Throws Unavailable.
std::string backend_name(pkv_runtime* runtime, const std::string& wanted);

// Of a backend by name. Throws Unavailable.
std::string backend_version(pkv_runtime* runtime, const std::string& name);

using DeviceOptions = std::vector<std::pair<std::string, std::string>>;

class Place {
 public:
  // Opens device 0, sets its options, and holds its memory, stream and events to their word. Throws
  // Unavailable.
  Place(pkv_runtime* runtime, const std::string& backend, const DeviceOptions& options = {});

  pkv_device* device() const { return device_.get(); }
  pkv_stream* stream() const { return stream_.get(); }
  const std::string& backend() const { return backend_; }
  const std::string& description() const { return description_; }
  pkv_device_type device_type() const { return device_type_; }
  // Of host memory that the device reads.
  pkv_device_type host_type() const;
  int32_t device_id() const { return device_id_; }

  // Memory of a kind (PKV_ALLOC_*); bytes >= 0.
  uint8_t* allocate(int64_t bytes, int32_t kind = PKV_ALLOC_DEVICE) const;
  void release(void* data) const { pkv_device_free(device_.get(), data); }
  // Between device and host memory, done on return.
  void copy(void* target, const void* source, int64_t bytes) const;

 private:
  void read_description();
  void check_memory() const;
  void check_events() const;

  std::string backend_;
  std::unique_ptr<pkv_device, CloseDevice> device_;
  std::unique_ptr<pkv_stream, CloseStream> stream_;
  std::string description_;
  pkv_device_type device_type_ = 0;
  int32_t device_id_ = 0;
};

// Bytes in guards, outputs and fresh memory before a case's first run and before its second.
inline constexpr uint8_t kFills[2] = {0xFF, 0x5A};

// Makes the C library fill fresh memory with `byte`, where it can (glibc): scratch that a stage
// takes for zeroed shows then. Device memory of other kinds has what was there.
void fill_fresh_memory(uint8_t byte);

}  // namespace pkv::conformance
