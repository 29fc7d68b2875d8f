// A backend's device with one stream, as the common options ask for, and memory on it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tools/command_line.h"
#include "tools/handles.h"
#include "tools/status.h"

namespace pkv::cli {

// The runtime, with its messages going to stderr as far as the options say.
absl::StatusOr<Runtime> create_runtime(const Common& common);

class Engine {
 public:
  static absl::StatusOr<std::unique_ptr<Engine>> open(const Common& common);

  pkv_device* device() const { return device_.get(); }
  pkv_stream* stream() const { return stream_.get(); }
  const char* backend() const { return pkv_device_backend(device_.get()); }
  // A view of memory of one kind (PKV_ALLOC_*). `shape`, and `strides` unless NULL, must live as
  // long.
  pkv_tensor tensor(int32_t kind, void* data, pkv_dtype dtype, std::span<const int64_t> shape,
                    const int64_t* strides = nullptr) const;
  absl::Status sync() const;

 private:
  Engine() = default;
  absl::Status ask_device_type();

  Runtime runtime_;
  Device device_;
  Stream stream_;
  pkv_device_type device_type_ = PKV_DEVICE_CPU;  // of its own memory
  pkv_device_type host_type_ = PKV_DEVICE_CPU;    // of host memory that it reads
  int32_t device_id_ = 0;
};

// Memory of one kind (PKV_ALLOC_*). The engine must outlive it.
class Memory {
 public:
  static absl::StatusOr<Memory> create(const Engine& engine, int32_t kind, int64_t bytes);
  void* data() const { return data_.get(); }

 private:
  struct Free {
    pkv_device* device;
    void operator()(void* data) const { pkv_device_free(device, data); }
  };
  explicit Memory(pkv_device* device, void* data) : data_(data, Free{device}) {}
  std::unique_ptr<void, Free> data_;
};

// An array in device memory with a copy of it on the host.
template <class T>
class DeviceArray {
 public:
  static absl::StatusOr<DeviceArray> create(const Engine& engine, int64_t count) {
    CLI_ASSIGN_OR_RETURN(Memory memory,
                         Memory::create(engine, PKV_ALLOC_DEVICE, count * int64_t{sizeof(T)}));
    return DeviceArray(engine, std::move(memory), count);
  }

  T* device() const { return static_cast<T*>(memory_.data()); }
  std::vector<T>& host() { return host_; }
  const std::vector<T>& host() const { return host_; }
  // Copies, in stream order; `download` also waits.
  absl::Status upload() { return copy(memory_.data(), host_.data()); }
  absl::Status download() {
    CLI_RETURN_IF_ERROR(copy(host_.data(), memory_.data()));
    return engine_->sync();
  }

 private:
  DeviceArray(const Engine& engine, Memory memory, int64_t count)
      : engine_(&engine), memory_(std::move(memory)), host_(static_cast<size_t>(count)) {}
  absl::Status copy(void* target, const void* source) {
    if (host_.empty()) return absl::OkStatus();
    return from_library(pkv_device_copy(engine_->stream(), target, source,
                                        static_cast<int64_t>(host_.size() * sizeof(T))),
                        About::kBackend);
  }

  const Engine* engine_;
  Memory memory_;
  std::vector<T> host_;
};

}  // namespace pkv::cli
