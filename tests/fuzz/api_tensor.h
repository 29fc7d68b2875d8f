// Tensor views for the sequence machine: sound ones, and ones that are wrong in one of many ways. A
// wrong one either lies within its memory all the same, or is one that no library could take: its
// rank, extents or address range cannot be. What only the caller can know (that memory is shorter
// than the view says) is never handed over.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <vector>

#include "pariskv/pariskv.h"
#include "tests/fuzz/fuzz.h"

namespace pkv::fuzz {

// A heap block of its own, so that a sanitizer sees what is read or written beside it.
class Memory {
 public:
  explicit Memory(int64_t bytes) : bytes_(static_cast<std::size_t>(bytes)) {}
  uint8_t* data() { return bytes_.data(); }
  int64_t size() const { return static_cast<int64_t>(bytes_.size()); }

 private:
  std::vector<uint8_t> bytes_;
};

// Numbers that are mostly small, and at times those at which arithmetic turns over.
int64_t odd_number(Bytes& bytes, int64_t usual);

struct View {
  pkv_tensor tensor{};
  std::array<int64_t, 8> shape{};
  std::array<int64_t, 8> strides{};
  // `tensor` with pointers to this object's arrays.
  const pkv_tensor* get();

  bool has_shape = true, has_strides = false;
};

// A view of `memory` with these extents, or one that is wrong.
View view_of(Bytes& bytes, Memory& memory, std::initializer_list<int64_t> extents, pkv_dtype dtype);

}  // namespace pkv::fuzz
