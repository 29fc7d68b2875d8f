#include "tests/cache/check/graph.h"

#include <dlfcn.h>

#include <cstddef>
#include <cstdlib>
#include <optional>
#include <stdexcept>
#include <string_view>

namespace pkv::cache_check {
namespace {

class HostGraph final : public Graph {
 public:
  explicit HostGraph(Device& device) : device_(device), stream_(device) {}
  Stream& stream() override { return stream_; }
  pkv_device_type device_type() const override {
    const char* apart = std::getenv("PKV_GPU_HOST_APART");
    const bool is_apart = apart != nullptr && std::string_view(apart) == "1";
    return is_apart ? PKV_DEVICE_CUDA : PKV_DEVICE_CPU;
  }
  void begin() override { set("capture"); }
  void end() override { set("end"); }
  void launch() override { set("launch"); }
  int64_t free_bytes() override { return 0; }

 private:
  void set(const char* value) { check(pkv_device_set(device_.get(), "graph", value)); }
  Device& device_;
  Stream stream_;
};

// The driver's functions, as cuda.h declares them.
struct Driver {
  using Handle = void*;
  int (*init)(unsigned);
  int (*retain)(Handle*, int);
  int (*set_current)(Handle);
  int (*stream_create)(Handle*, unsigned);
  int (*capture_begin)(Handle, int);
  int (*capture_end)(Handle, Handle*);
  int (*instantiate)(Handle*, Handle, unsigned long long);
  int (*launch)(Handle, Handle);
  int (*memory)(std::size_t*, std::size_t*);

  Driver() {
    void* library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == nullptr) throw std::runtime_error("libcuda.so.1 is not there");
    const auto find = [&](auto& function, const char* name) {
      function =
          reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
      if (function == nullptr) throw std::runtime_error(std::string("libcuda.so.1 lacks ") + name);
    };
    find(init, "cuInit");
    find(retain, "cuDevicePrimaryCtxRetain");
    find(set_current, "cuCtxSetCurrent");
    find(stream_create, "cuStreamCreate");
    find(capture_begin, "cuStreamBeginCapture_v2");
    find(capture_end, "cuStreamEndCapture");
    find(instantiate, "cuGraphInstantiateWithFlags");
    find(launch, "cuGraphLaunch");
    find(memory, "cuMemGetInfo_v2");
  }
};

void expect(int result, const char* what) {
  if (result != 0) {
    throw std::runtime_error(std::string(what) + ": CUresult " + std::to_string(result));
  }
}

class CudaGraph final : public Graph {
 public:
  explicit CudaGraph(Device& device) {
    constexpr unsigned kNonBlocking = 1;
    Driver::Handle context = nullptr;
    expect(driver_.init(0), "cuInit");
    expect(driver_.retain(&context, 0), "cuDevicePrimaryCtxRetain");
    expect(driver_.set_current(context), "cuCtxSetCurrent");
    expect(driver_.stream_create(&native_, kNonBlocking), "cuStreamCreate");
    stream_.emplace(Stream::wrap(device, reinterpret_cast<uintptr_t>(native_)));
  }
  Stream& stream() override { return *stream_; }
  pkv_device_type device_type() const override { return PKV_DEVICE_CUDA; }
  void begin() override {
    constexpr int kGlobal = 0;  // calls that are unsafe while capturing fail
    expect(driver_.capture_begin(native_, kGlobal), "cuStreamBeginCapture");
  }
  void end() override {
    Driver::Handle graph = nullptr;
    expect(driver_.capture_end(native_, &graph), "cuStreamEndCapture");
    expect(driver_.instantiate(&executable_, graph, 0), "cuGraphInstantiate");
  }
  void launch() override { expect(driver_.launch(executable_, native_), "cuGraphLaunch"); }
  int64_t free_bytes() override {
    std::size_t free = 0;
    std::size_t total = 0;
    expect(driver_.memory(&free, &total), "cuMemGetInfo");
    return static_cast<int64_t>(free);
  }

 private:
  Driver driver_;
  Driver::Handle native_ = nullptr;
  Driver::Handle executable_ = nullptr;
  std::optional<Stream> stream_;
};

}  // namespace

std::unique_ptr<Graph> make_graph(Device& device, const std::string& backend) {
  if (backend == "cuda") return std::make_unique<CudaGraph>(device);
  if (backend == "gpu-host") return std::make_unique<HostGraph>(device);
  throw std::runtime_error("backend " + backend + " captures nothing; accepted: cuda, gpu-host");
}

}  // namespace pkv::cache_check
