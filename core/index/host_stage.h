// Tokens that append finds in host memory, copied to the device in front of encode: a copy has the
// bus's full speed, a kernel that reads across it has not.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/tensor.h"
#include "core/runtime/buffer.h"
#include "core/runtime/stream.h"

namespace pkv {

// Tokens [begin, begin + count) of a view [h, t, width], as a batch of one: [1, h, count, width].
class TokenChunk {
 public:
  TokenChunk(const TensorView& view, int64_t begin, int64_t count);
  TokenChunk(const TokenChunk&) = delete;
  TokenChunk& operator=(const TokenChunk&) = delete;
  const pkv_tensor& tensor() const { return tensor_; }

 private:
  friend class HostStage;
  int64_t element_bytes() const;
  int64_t head_stride_bytes() const { return strides_[1] * element_bytes(); }
  int64_t token_stride_bytes() const { return strides_[2] * element_bytes(); }
  int64_t vector_bytes() const { return shape_[3] * element_bytes(); }

  pkv_tensor tensor_;
  std::array<int64_t, 4> shape_;
  std::array<int64_t, 4> strides_;
};

class HostStage {
 public:
  // Copies chunks into the stage, in stream order, and makes them name it. Left where they are:
  // what lies in the device's memory, few tokens, and layouts of which a copy would move much that
  // is not wanted. `values` NULL: none. One call at a time; the next one overwrites.
  absl::Status take(const Stream& stream, TokenChunk& keys, TokenChunk* values);
  int64_t bytes() const { return room_.bytes(); }

 private:
  Buffer room_;
};

}  // namespace pkv
