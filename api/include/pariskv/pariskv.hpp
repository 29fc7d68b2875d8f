// pariskv.h for C++17 and later: header-only, nothing but the C functions behind it.
//  - Each handle is a move-only class that destroys it. get() gives the C handle, for calls that
//    have no method here. What is not said here stands in pariskv.h.
//  - A failure is thrown as pkv::Error, with the status and the library's text.
//  - Structs come filled from a function of their name: auto hits = pkv::hits();
//
//   pkv::Runtime runtime;
//   pkv::Device device(runtime);
//   pkv::Stream stream(device);
//   pkv::Config config;
//   config.set("head_dim", "128");
//   pkv::Codec codec = pkv::Codec::fit_sync(device, stream, config, keys, &queries, &values);
//   pkv::Index index(device, codec, 1, 131072);
//   index.append_sync(stream, 0, keys, &values);
#ifndef PARISKV_HPP_
#define PARISKV_HPP_

#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>

#include "pariskv/pariskv.h"

namespace pkv {
// A namespace of its own inside: the library has classes of the same names, and may be linked
// statically.
inline namespace api {

class Error : public std::runtime_error {
 public:
  Error(pkv_status status, const char* text) : std::runtime_error(text), status_(status) {}
  pkv_status status() const noexcept { return status_; }

 private:
  pkv_status status_;
};

inline void check(pkv_status status) {
  if (status != PKV_OK) throw Error(status, pkv_last_error());
}

template <class T, void (*kDestroy)(T*)>
class Handle {
 public:
  Handle(Handle&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Handle& operator=(Handle&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Handle() { kDestroy(handle_); }

  T* get() const noexcept { return handle_; }
  // Gives the handle away; the caller destroys it.
  T* release() noexcept { return std::exchange(handle_, nullptr); }

 protected:
  Handle() = default;
  explicit Handle(T* handle) noexcept : handle_(handle) {}

  T* handle_ = nullptr;
};

// Structs with their defaults.
template <class Struct, pkv_status (*kInit)(Struct*, size_t)>
Struct initialised() {
  Struct value;
  check(kInit(&value, sizeof(value)));
  return value;
}
inline pkv_runtime_options runtime_options() {
  return initialised<pkv_runtime_options, pkv_runtime_options_init>();
}
inline pkv_backend_info backend_info() {
  return initialised<pkv_backend_info, pkv_backend_info_init>();
}
inline pkv_option_info option_info() {
  return initialised<pkv_option_info, pkv_option_info_init>();
}
inline pkv_codec_data codec_data() { return initialised<pkv_codec_data, pkv_codec_data_init>(); }
inline pkv_geometry geometry() { return initialised<pkv_geometry, pkv_geometry_init>(); }
inline pkv_index_stats index_stats() {
  return initialised<pkv_index_stats, pkv_index_stats_init>();
}
inline pkv_plan_desc plan_desc() { return initialised<pkv_plan_desc, pkv_plan_desc_init>(); }
inline pkv_hits hits() { return initialised<pkv_hits, pkv_hits_init>(); }
inline pkv_rows rows() { return initialised<pkv_rows, pkv_rows_init>(); }
inline pkv_step step() { return initialised<pkv_step, pkv_step_init>(); }
inline pkv_row_cache_stats row_cache_stats() {
  return initialised<pkv_row_cache_stats, pkv_row_cache_stats_init>();
}
inline pkv_attention attention() { return initialised<pkv_attention, pkv_attention_init>(); }

class Runtime : public Handle<pkv_runtime, pkv_runtime_destroy> {
 public:
  explicit Runtime(const pkv_runtime_options* options = nullptr) {
    check(pkv_runtime_create(options, &handle_));
  }
  std::string describe() const {
    const char* text = nullptr;
    check(pkv_runtime_describe(handle_, &text));
    return text;
  }
  int32_t backend_count() const {
    int32_t count = 0;
    check(pkv_runtime_backend_count(handle_, &count));
    return count;
  }
  pkv_backend_info backend(int32_t index) const {
    pkv_backend_info info = backend_info();
    check(pkv_runtime_backend_info(handle_, index, &info));
    return info;
  }
  int32_t load(const char* path) {
    int32_t index = 0;
    check(pkv_runtime_backend_load(handle_, path, &index));
    return index;
  }
};

class Device : public Handle<pkv_device, pkv_device_close> {
 public:
  explicit Device(const Runtime& runtime, const char* backend = "auto", int32_t ordinal = 0) {
    check(pkv_device_open(runtime.get(), backend, ordinal, &handle_));
  }
  std::string describe() const {
    const char* text = nullptr;
    check(pkv_device_describe(handle_, &text));
    return text;
  }
  const char* backend() const { return pkv_device_backend(handle_); }
};

// Memory of a device, which must outlive it.
class Memory {
 public:
  Memory(Device& device, int64_t bytes, int32_t kind = PKV_ALLOC_DEVICE) : device_(device.get()) {
    check(pkv_device_alloc(device_, kind, bytes, &data_));
  }
  Memory(Memory&& other) noexcept
      : device_(other.device_), data_(std::exchange(other.data_, nullptr)) {}
  Memory& operator=(Memory&& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(data_, other.data_);
    return *this;
  }
  ~Memory() {
    if (data_ != nullptr) pkv_device_free(device_, data_);
  }
  void* data() const noexcept { return data_; }
  template <class T>
  T* as() const noexcept {
    return static_cast<T*>(data_);
  }

 private:
  pkv_device* device_;
  void* data_ = nullptr;
};

class Stream : public Handle<pkv_stream, pkv_stream_destroy> {
 public:
  explicit Stream(Device& device) { check(pkv_stream_create(device.get(), &handle_)); }
  static Stream wrap(Device& device, uintptr_t native) {
    Stream stream;
    check(pkv_stream_wrap(device.get(), native, &stream.handle_));
    return stream;
  }
  void copy(void* target, const void* source, int64_t bytes) {
    check(pkv_device_copy(handle_, target, source, bytes));
  }
  void sync() { check(pkv_stream_sync(handle_)); }

 private:
  Stream() = default;
};

class Event : public Handle<pkv_event, pkv_event_destroy> {
 public:
  explicit Event(Device& device) { check(pkv_event_create(device.get(), &handle_)); }
  void record(Stream& stream) { check(pkv_event_record(handle_, stream.get())); }
  void wait(Stream& stream) { check(pkv_event_wait(handle_, stream.get())); }
};

class Config : public Handle<pkv_config, pkv_config_destroy> {
 public:
  explicit Config(const char* profile = "default") { check(pkv_config_create(profile, &handle_)); }
  Config& set(const std::string& name, const std::string& value) {
    check(pkv_config_set(handle_, name.c_str(), value.c_str()));
    return *this;
  }
  std::string get(const std::string& name) const {
    const char* value = nullptr;
    check(pkv_config_get(handle_, name.c_str(), &value));
    return value;
  }
  using Handle::get;
};

class Codec : public Handle<pkv_codec, pkv_codec_destroy> {
 public:
  explicit Codec(pkv_codec* handle) noexcept : Handle(handle) {}
  static Codec fit_sync(Device& device, Stream& stream, const Config& config,
                        const pkv_tensor& keys, const pkv_tensor* queries = nullptr,
                        const pkv_tensor* values = nullptr) {
    pkv_codec* codec = nullptr;
    check(pkv_codec_fit_sync(device.get(), stream.get(), config.get(), &keys, queries, values,
                             &codec));
    return Codec(codec);
  }
  static Codec from(Device& device, const Config& config, const pkv_codec_data& data) {
    pkv_codec* codec = nullptr;
    check(pkv_codec_import(device.get(), config.get(), &data, &codec));
    return Codec(codec);
  }
  pkv_codec_data data() const {
    pkv_codec_data data = codec_data();
    check(pkv_codec_export(handle_, &data));
    return data;
  }
  pkv_geometry geometry() const {
    pkv_geometry geometry = api::geometry();
    check(pkv_codec_geometry(handle_, &geometry));
    return geometry;
  }
};

class Index : public Handle<pkv_index, pkv_index_destroy> {
 public:
  Index(Device& device, const Codec& codec, int32_t sequences, int64_t capacity) {
    check(pkv_index_create(device.get(), codec.get(), sequences, capacity, &handle_));
  }
  static Index load_sync(Device& device, Stream& stream, const char* path) {
    Index index;
    check(pkv_index_load_sync(device.get(), stream.get(), path, &index.handle_, nullptr));
    return index;
  }
  void append(Stream& stream, int32_t sequence, const pkv_tensor& keys,
              const pkv_tensor* values = nullptr) {
    check(pkv_index_append(handle_, stream.get(), sequence, &keys, values));
  }
  void append_sync(Stream& stream, int32_t sequence, const pkv_tensor& keys,
                   const pkv_tensor* values = nullptr) {
    check(pkv_index_append_sync(handle_, stream.get(), sequence, &keys, values));
  }
  void reset(Stream& stream, int32_t sequence) {
    check(pkv_index_reset(handle_, stream.get(), sequence));
  }
  int64_t length(int32_t sequence) const {
    int64_t length = 0;
    check(pkv_index_length(handle_, sequence, &length));
    return length;
  }
  pkv_index_stats stats_sync(Stream& stream) const {
    pkv_index_stats stats = index_stats();
    check(pkv_index_stats_sync(handle_, stream.get(), &stats));
    return stats;
  }
  void save_sync(Stream& stream, const char* path, uint32_t flags = 0) const {
    check(pkv_index_save_sync(handle_, stream.get(), path, flags));
  }
  void restore_sync(Stream& stream, const char* path) {
    check(pkv_index_restore_sync(handle_, stream.get(), path));
  }

 private:
  Index() = default;
};

class RowCache : public Handle<pkv_row_cache, pkv_row_cache_destroy> {
 public:
  RowCache(const Index& index, Stream& stream, pkv_dtype dtype, int32_t rows) {
    check(pkv_row_cache_create(index.get(), stream.get(), dtype, rows, &handle_));
  }
  void drop(Stream& stream, int32_t sequence) {
    check(pkv_row_cache_drop(handle_, stream.get(), sequence));
  }
  pkv_row_cache_stats stats_sync(Stream& stream) const {
    pkv_row_cache_stats stats = row_cache_stats();
    check(pkv_row_cache_stats_sync(handle_, stream.get(), &stats));
    return stats;
  }
};

class Plan : public Handle<pkv_plan, pkv_plan_destroy> {
 public:
  Plan(const Index& index, const Config& config, const pkv_plan_desc& desc) {
    check(pkv_plan_create(index.get(), config.get(), &desc, &handle_));
  }
  int64_t scratch_bytes() const {
    int64_t bytes = 0;
    check(pkv_plan_scratch_bytes(handle_, &bytes));
    return bytes;
  }
  int64_t candidates() const {
    int64_t count = 0;
    check(pkv_plan_candidates(handle_, &count));
    return count;
  }
  std::string describe() const {
    const char* text = nullptr;
    check(pkv_plan_describe(handle_, &text));
    return text;
  }
  void retrieve(Stream& stream, const pkv_tensor& query, void* scratch,
                const pkv_hits& hits) const {
    check(pkv_retrieve(handle_, stream.get(), &query, scratch, &hits));
  }
  void vote(Stream& stream, const pkv_tensor& query, void* scratch, float* votes,
            int64_t stride) const {
    check(pkv_vote(handle_, stream.get(), &query, scratch, votes, stride));
  }
  void rerank(Stream& stream, const pkv_tensor& query, void* scratch, const pkv_hits& hits) const {
    check(pkv_rerank(handle_, stream.get(), &query, scratch, &hits));
  }
  void fetch(Stream& stream, const pkv_rows& source, const pkv_hits& hits,
             const pkv_rows& rows) const {
    check(pkv_fetch(handle_, stream.get(), &source, &hits, &rows));
  }
  void step(Stream& stream, const pkv_step& step) const {
    check(pkv_step_run(handle_, stream.get(), &step));
  }
  void attend(Stream& stream, const pkv_attention& attention) const {
    check(pkv_attend(handle_, stream.get(), &attention));
  }
};

}  // namespace api
}  // namespace pkv
#endif  // PARISKV_HPP_
