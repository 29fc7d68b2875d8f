// Runs a lambda as a kernel.
#pragma once

#include <functional>
#include <string>

#include "backends/gpu/gpu_rt.h"

namespace pkv::gpu_host {

// Every kind of hardware and order that a test goes through.
inline constexpr gpu_exec::Options kMachines[] = {{32, 0}, {64, 0},  {32, 1},
                                                  {64, 1}, {32, 77}, {64, 77}};

struct KernelShape {
  int32_t threads = 64;
  gpu_exec::Grid grid = {1, 1};
  int64_t dynamic_bytes = 0;
  bool is_cooperative = false;
};

// Empty, or what the executor says against it.
inline std::string run_kernel(gpu_exec::Machine& machine, const gpu_exec::Options& options,
                              const KernelShape& shape, const std::function<void()>& kernel) {
  machine.set_options(options);
  return machine.run(
      {"probe", shape.grid, shape.threads, shape.dynamic_bytes, shape.is_cooperative}, kernel);
}
inline std::string run_kernel(const gpu_exec::Options& options, const KernelShape& shape,
                              const std::function<void()>& kernel) {
  gpu_exec::Machine machine;
  return run_kernel(machine, options, shape, kernel);
}

}  // namespace pkv::gpu_host
