// Backend gpu-host beside the reference: an open device, memory, calls of its slots.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "backends/gpu/device.h"
#include "core/format/records.h"

namespace pkv::gpu_host {

class Backend {
 public:
  explicit Backend(const gpu_exec::Options& options = {}) {
    host_.struct_size = sizeof host_;
    host_.user = this;
    host_.report = [](const pkv_host* host, const char* text) {
      static_cast<Backend*>(host->user)->reported_ = text;
    };
    expect(table()->device_open(&host_, 0, &device_));
    set("lanes", std::to_string(options.lanes));
    set("seed", std::to_string(options.seed));
    expect(table()->stream_create(device_, &stream_));
  }
  ~Backend() {
    for (void* memory : memory_) table()->memory_free(device_, PKV_MEMORY_DEVICE, memory, 1);
    table()->stream_destroy(device_, stream_);
    table()->device_close(device_);
  }
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;

  pkv_backend_device* device() const { return device_; }
  pkv_backend_stream* stream() const { return stream_; }
  // The text of the last refusal.
  const std::string& reported() const { return reported_; }

  void set(const char* name, const std::string& value) {
    expect(table()->device_set(device_, name, value.c_str()));
  }
  void expect(pkv_status status) const {
    if (status != PKV_OK) throw std::runtime_error("gpu-host: " + reported_);
  }

  // Device memory full of 0xA5, until the backend ends.
  void* allocate(int64_t bytes) {
    void* memory = nullptr;
    expect(table()->memory_alloc(device_, PKV_MEMORY_DEVICE, bytes > 0 ? bytes : 1, &memory));
    expect(table()->memory_fill(device_, stream_, memory, 0xA5, bytes));
    memory_.push_back(memory);
    return memory;
  }

  // supports, scratch_bytes, run.
  template <class Slots, class Args>
  void run(const Slots& slots, const Args& args) {
    expect(slots.supports(device_, &args));
    int64_t bytes = -1;
    expect(slots.scratch_bytes(device_, &args, &bytes));
    expect(slots.run(device_, stream_, &args, allocate(bytes)));
  }

 private:
  pkv_host host_ = {};
  std::string reported_;
  pkv_backend_device* device_ = nullptr;
  pkv_backend_stream* stream_ = nullptr;
  std::vector<void*> memory_;
};

// Canonical records of one row in host memory.
class Planes {
 public:
  Planes(const pkv_geometry& geometry, int64_t tokens) {
    const format::RecordSizes sizes = format::record_sizes(geometry);
    const int bytes[format::kPlanes] = {sizes.signs,         sizes.vote_factors, sizes.codes,
                                        sizes.factors,       sizes.value_signs,  sizes.value_codes,
                                        sizes.value_factors, sizes.value_norms};
    for (int p = 0; p < format::kPlanes; ++p) {
      const int64_t entries = format::plane_entries(geometry, p, tokens);
      planes_[p].assign(static_cast<size_t>(entries * bytes[p] / 2 + 1), 0);
    }
    records.struct_size = sizeof records;
    records.row_tokens = tokens;
    records.signs = reinterpret_cast<uint8_t*>(planes_[0].data());
    records.vote_factors = planes_[1].data();
    records.codes = reinterpret_cast<uint8_t*>(planes_[2].data());
    records.factors = planes_[3].data();
    records.value_signs = reinterpret_cast<uint8_t*>(planes_[4].data());
    records.value_codes = reinterpret_cast<uint8_t*>(planes_[5].data());
    records.value_factors = planes_[6].data();
    records.value_norms = planes_[7].data();
  }

  bool operator==(const Planes& other) const {
    return std::equal(planes_, planes_ + format::kPlanes, other.planes_);
  }

  pkv_records records = {};

 private:
  std::vector<uint16_t> planes_[format::kPlanes];
};

}  // namespace pkv::gpu_host
