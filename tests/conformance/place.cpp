#include "tests/conformance/place.h"

#if defined(__GLIBC__)
#include <malloc.h>
#endif

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "fmt/core.h"
#include "tests/conformance/failure.h"

namespace pkv::conformance {
namespace {

void require_available(const char* function, pkv_status status) {
  if (status != PKV_OK) throw Unavailable(error_text(function, status));
}

pkv_device_type type_of(const std::string& name) {
  const struct {
    const char* name;
    pkv_device_type type;
  } types[] = {{"cpu", PKV_DEVICE_CPU},
               {"cuda", PKV_DEVICE_CUDA},
               {"cuda_host", PKV_DEVICE_CUDA_HOST},
               {"rocm", PKV_DEVICE_ROCM},
               {"rocm_host", PKV_DEVICE_ROCM_HOST},
               {"cuda_managed", PKV_DEVICE_CUDA_MANAGED}};
  for (const auto& type : types) {
    if (name == type.name) return type.type;
  }
  throw Unavailable(fmt::format("device_type '{}' is none that this program knows", name));
}

}  // namespace

std::string error_text(const char* function, pkv_status status) {
  const std::string text = pkv_last_error();  // begins with the function, as a rule
  const bool names_function = text.rfind(function, 0) == 0;
  return fmt::format("{}: {}{}", pkv_status_name(status),
                     names_function ? "" : fmt::format("{}: ", function), text);
}

void require(const char* function, pkv_status status) {
  if (status != PKV_OK) throw Failure(error_text(function, status));
}

Runtime open_runtime(pkv_log_fn sink, void* user) {
  pkv_runtime* runtime = nullptr;
  pkv_runtime_options options = {};
  require_available("pkv_runtime_options_init", pkv_runtime_options_init(&options, sizeof options));
  options.log = sink;
  options.log_user = user;
  options.log_level = 3;
  require_available("pkv_runtime_create", pkv_runtime_create(&options, &runtime));
  return Runtime(runtime);
}

std::string backend_name(pkv_runtime* runtime, const std::string& wanted) {
  if (wanted.find('/') == std::string::npos) return wanted;
  int32_t index = 0;
  require_available("pkv_runtime_backend_load",
                    pkv_runtime_backend_load(runtime, wanted.c_str(), &index));
  pkv_backend_info info = {};
  require_available("pkv_backend_info_init", pkv_backend_info_init(&info, sizeof info));
  require_available("pkv_runtime_backend_info", pkv_runtime_backend_info(runtime, index, &info));
  if (info.is_usable == 0) {
    throw Unavailable(fmt::format("{}: not usable: {}", wanted, info.reason));
  }
  return info.name;
}

std::string backend_version(pkv_runtime* runtime, const std::string& name) {
  int32_t count = 0;
  require_available("pkv_runtime_backend_count", pkv_runtime_backend_count(runtime, &count));
  for (int32_t i = 0; i < count; ++i) {
    pkv_backend_info info = {};
    require_available("pkv_backend_info_init", pkv_backend_info_init(&info, sizeof info));
    require_available("pkv_runtime_backend_info", pkv_runtime_backend_info(runtime, i, &info));
    if (info.name == name) return info.version;
  }
  return "";
}

Place::Place(pkv_runtime* runtime, const std::string& backend, const DeviceOptions& options) {
  pkv_device* device = nullptr;
  require_available("pkv_device_open", pkv_device_open(runtime, backend.c_str(), 0, &device));
  device_.reset(device);
  backend_ = pkv_device_backend(device);
  for (const auto& [name, value] : options) {
    require_available("pkv_device_set", pkv_device_set(device, name.c_str(), value.c_str()));
  }
  pkv_stream* stream = nullptr;
  require_available("pkv_stream_create", pkv_stream_create(device, &stream));
  stream_.reset(stream);
  read_description();
  check_memory();
  check_events();
}

void Place::read_description() {
  const char* text = nullptr;
  require_available("pkv_device_describe", pkv_device_describe(device_.get(), &text));
  const auto json = nlohmann::json::parse(text);
  device_type_ = type_of(json.at("device_type").get<std::string>());
  device_id_ = json.at("device_id").get<int32_t>();
  description_ = json.at("device").get<std::string>();
}

// Alignment, and that what is copied in comes out again, between blocks too.
void Place::check_memory() const {
  for (const int32_t kind : {PKV_ALLOC_DEVICE, PKV_ALLOC_HOST}) {
    for (const int64_t bytes : {int64_t{1}, int64_t{4099}}) {
      std::vector<uint8_t> out(static_cast<size_t>(bytes));
      for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<uint8_t>(37 * i + 11);
      std::vector<uint8_t> back(out.size(), 0);
      void* blocks[2] = {};
      for (void*& block : blocks) {
        require_available("pkv_device_alloc", pkv_device_alloc(device_.get(), kind, bytes, &block));
        if (reinterpret_cast<uintptr_t>(block) % 256 != 0) {
          throw Unavailable(fmt::format("pkv_device_alloc: kind {}: not aligned to 256", kind));
        }
      }
      const void* stages[] = {out.data(), blocks[0], blocks[1], back.data()};
      for (int step = 0; step < 3; ++step) {
        require_available("pkv_device_copy",
                          pkv_device_copy(stream_.get(), const_cast<void*>(stages[step + 1]),
                                          stages[step], bytes));
      }
      require_available("pkv_stream_sync", pkv_stream_sync(stream_.get()));
      for (void* block : blocks) release(block);
      if (back != out) {
        throw Unavailable(fmt::format(
            "pkv_device_copy: {} bytes of kind {} do not come back as they went in", bytes, kind));
      }
    }
  }
}

void Place::check_events() const {
  pkv_event* event = nullptr;
  pkv_stream* wrapped = nullptr;
  require_available("pkv_event_create", pkv_event_create(device_.get(), &event));
  const std::unique_ptr<pkv_event, decltype(&pkv_event_destroy)> owner(event, pkv_event_destroy);
  require_available("pkv_stream_wrap", pkv_stream_wrap(device_.get(), 0, &wrapped));
  const std::unique_ptr<pkv_stream, CloseStream> stream(wrapped);
  require_available("pkv_event_record", pkv_event_record(event, stream_.get()));
  require_available("pkv_event_wait", pkv_event_wait(event, wrapped));
  require_available("pkv_stream_sync", pkv_stream_sync(wrapped));
}

pkv_device_type Place::host_type() const {
  switch (device_type_) {
    case PKV_DEVICE_CUDA: return PKV_DEVICE_CUDA_HOST;
    case PKV_DEVICE_ROCM: return PKV_DEVICE_ROCM_HOST;
    default: return PKV_DEVICE_CPU;
  }
}

uint8_t* Place::allocate(int64_t bytes, int32_t kind) const {
  void* data = nullptr;
  require("pkv_device_alloc",
          pkv_device_alloc(device_.get(), kind, std::max<int64_t>(bytes, 1), &data));
  return static_cast<uint8_t*>(data);
}

void Place::copy(void* target, const void* source, int64_t bytes) const {
  require("pkv_device_copy", pkv_device_copy(stream_.get(), target, source, bytes));
  require("pkv_stream_sync", pkv_stream_sync(stream_.get()));
}

void fill_fresh_memory([[maybe_unused]] uint8_t byte) {
#if defined(__GLIBC__)
  // Fresh memory gets the complement of the low byte, and 0 as a whole turns filling off.
  mallopt(M_PERTURB, 0x100 | static_cast<uint8_t>(~byte));
#endif
}

}  // namespace pkv::conformance
