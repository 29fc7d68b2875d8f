#include "tools/engine.h"

#include <algorithm>
#include <cstdio>

#include "nlohmann/json.hpp"

namespace pkv::cli {
namespace {

void log_to_stderr(void* /*user*/, int32_t level, const char* text) {
  constexpr const char* kNames[] = {"error", "warning", "info", "debug"};
  std::fprintf(stderr, "pariskv: %s: %s\n", kNames[std::clamp(level, 0, 3)], text);
}

}  // namespace

absl::StatusOr<Runtime> create_runtime(const Common& common) {
  pkv_runtime_options options;
  CLI_RETURN_IF_ERROR(
      from_library(pkv_runtime_options_init(&options, sizeof options), About::kBackend));
  options.log = log_to_stderr;
  options.log_level =
      static_cast<int32_t>(std::max<int64_t>(common.log_level, common.is_verbose ? 2 : 0));
  pkv_runtime* runtime = nullptr;
  CLI_RETURN_IF_ERROR(from_library(pkv_runtime_create(&options, &runtime), About::kBackend));
  return Runtime(runtime);
}

absl::StatusOr<std::unique_ptr<Engine>> Engine::open(const Common& common) {
  std::unique_ptr<Engine> engine(new Engine());
  CLI_ASSIGN_OR_RETURN(engine->runtime_, create_runtime(common));
  pkv_device* device = nullptr;
  CLI_RETURN_IF_ERROR(from_library(pkv_device_open(engine->runtime_.get(), common.backend.c_str(),
                                                   static_cast<int32_t>(common.device), &device),
                                   About::kBackend, fmt::format("--backend={}", common.backend)));
  engine->device_.reset(device);
  CLI_RETURN_IF_ERROR(engine->ask_device_type());
  pkv_stream* stream = nullptr;
  CLI_RETURN_IF_ERROR(from_library(pkv_stream_create(device, &stream), About::kBackend));
  engine->stream_.reset(stream);
  return engine;
}

absl::Status Engine::ask_device_type() {
  const char* text = nullptr;
  CLI_RETURN_IF_ERROR(from_library(pkv_device_describe(device_.get(), &text), About::kBackend));
  const auto about = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  const std::string type = about.value("device_type", "cpu");
  if (type == "cuda") {
    device_type_ = PKV_DEVICE_CUDA;
    host_type_ = PKV_DEVICE_CUDA_HOST;
  } else if (type == "rocm") {
    device_type_ = PKV_DEVICE_ROCM;
    host_type_ = PKV_DEVICE_ROCM_HOST;
  }
  device_id_ = about.value("device_id", 0);
  return absl::OkStatus();
}

pkv_tensor Engine::tensor(int32_t kind, void* data, pkv_dtype dtype, std::span<const int64_t> shape,
                          const int64_t* strides) const {
  pkv_tensor tensor = {};
  tensor.data = data;
  tensor.device_type = kind == PKV_ALLOC_DEVICE ? device_type_ : host_type_;
  tensor.device_id = kind == PKV_ALLOC_DEVICE ? device_id_ : 0;
  tensor.ndim = static_cast<int32_t>(shape.size());
  tensor.dtype = dtype;
  tensor.shape = shape.data();
  tensor.strides = strides;
  return tensor;
}

absl::Status Engine::sync() const {
  return from_library(pkv_stream_sync(stream_.get()), About::kOutput);
}

absl::StatusOr<Memory> Memory::create(const Engine& engine, int32_t kind, int64_t bytes) {
  void* data = nullptr;
  CLI_RETURN_IF_ERROR(from_library(
      pkv_device_alloc(engine.device(), kind, std::max<int64_t>(bytes, 1), &data), About::kOutput));
  return Memory(engine.device(), data);
}

}  // namespace pkv::cli
