// The scratch of a call, handed out piece by piece. A stage lists its pieces in one function that
// serves twice: without memory it counts the bytes, with memory it hands out the pointers.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backends/gpu/gpu_rt.h"

namespace PKV_GPU_NS {

class Scratch {
 public:
  explicit Scratch(void* base) : base_(static_cast<std::byte*>(base)) {}

  // Room for `count` values, aligned to 256; contents undefined.
  template <class Value>
  Value* take(int64_t count) {
    std::byte* piece = base_ == nullptr ? nullptr : base_ + bytes_;
    bytes_ += (count * int64_t{sizeof(Value)} + 255) / 256 * 256;
    return reinterpret_cast<Value*>(piece);
  }

  int64_t bytes() const { return bytes_; }

 private:
  std::byte* base_;
  int64_t bytes_ = 0;
};

}  // namespace PKV_GPU_NS
