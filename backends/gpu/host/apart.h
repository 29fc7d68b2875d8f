// Device memory that the host cannot touch: PKV_GPU_HOST_APART=1 makes gpu-host a device with
// memory of its own, of type cuda, so that what only a GPU's callers do runs without one. Its pages
// can be read and written while a kernel, a copy or a fill runs; at any other time the process dies
// of it, as it would of a device's address.
#pragma once

#include <cstddef>

namespace pkv::gpu_host {

bool is_apart();

// NULL: no memory.
void* apart_alloc(std::size_t bytes);
void apart_free(void* data);

// While one lives, the memory is within reach. Nothing where is_apart is false.
class Reach {
 public:
  Reach();
  ~Reach();
  Reach(const Reach&) = delete;
  Reach& operator=(const Reach&) = delete;
};

}  // namespace pkv::gpu_host
