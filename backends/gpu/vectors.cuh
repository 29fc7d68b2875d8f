// K and V vectors of the caller: where they lie, and eight elements of one at a time.
// Rows may be strided and aligned to their elements alone; where 16 bytes are aligned, one load
// moves them. The memory may be the host's, mapped: addresses are the same.
#pragma once

#include "backends/gpu/gpu_vec.cuh"
#include "backends/gpu/views.h"

namespace PKV_GPU_NS {

// One KV head of one entry or sequence.
struct VectorRow {
  const std::byte* base;  // in one piece: position 0
  int64_t stride_bytes;
  format::TokenPages pages;  // its table is NULL: in one piece

  PKV_DEVICE const std::byte* at(int64_t position) const {
    return pages.table == nullptr ? base + position * stride_bytes : pages.at(position);
  }
};

// All of them: a tensor [.., h, n, width], or pages.
struct VectorSource {
  TensorView tensor;
  pkv_pages pages;

  // `i`: of the tensor's first axis; `sequence`: of the pages.
  PKV_DEVICE VectorRow row(int64_t i, int64_t sequence, int32_t head) const {
    VectorRow row{};
    if (pages.table != nullptr) {
      row.pages = format::token_pages(pages, sequence, head);
    } else {
      row.base = tensor.row(i, head);
      row.stride_bytes = tensor.stride_bytes[2];
    }
    return row;
  }
};

inline VectorSource source_of(const pkv_tensor& tensor, const pkv_pages& pages) {
  return {view_of(tensor), pages};
}

PKV_DEVICE bool is_aligned(const void* address, int bytes) {
  return reinterpret_cast<uintptr_t>(address) % static_cast<uintptr_t>(bytes) == 0;
}

// Of an element of K, V or a query: f32, f16 or bf16.
PKV_DEVICE int64_t float_bytes(pkv_dtype dtype) { return dtype == PKV_DTYPE_F32 ? 4 : 2; }

// Eight neighbouring elements as they lie: f32 in eight words, f16 and bf16 in the first four.
struct Raw8 {
  uint32_t word[8];
};

PKV_DEVICE Raw8 load_raw8(pkv_dtype dtype, const std::byte* from) {
  Raw8 raw = {};
  const bool is_wide = dtype == PKV_DTYPE_F32;
  if (is_aligned(from, 16)) {
    const auto low = load_words<4>(from);
#pragma unroll
    for (int i = 0; i < 4; ++i) raw.word[i] = low.word[i];
    if (is_wide) {
      const auto high = load_words<4>(from + 16);
#pragma unroll
      for (int i = 0; i < 4; ++i) raw.word[4 + i] = high.word[i];
    }
    return raw;
  }
  if (is_wide) {
#pragma unroll
    for (int i = 0; i < 8; ++i) raw.word[i] = reinterpret_cast<const uint32_t*>(from)[i];
    return raw;
  }
  const auto* halves = reinterpret_cast<const uint16_t*>(from);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    raw.word[i] = halves[2 * i] | (static_cast<uint32_t>(halves[2 * i + 1]) << 16);
  }
  return raw;
}

// To memory aligned to 16 bytes.
PKV_DEVICE void store_raw8(pkv_dtype dtype, std::byte* to, const Raw8& raw) {
  store_words(to, Words<4>{{raw.word[0], raw.word[1], raw.word[2], raw.word[3]}});
  if (dtype != PKV_DTYPE_F32) return;
  store_words(to + 16, Words<4>{{raw.word[4], raw.word[5], raw.word[6], raw.word[7]}});
}

// The elements, exactly.
PKV_DEVICE void unpack8(pkv_dtype dtype, const Raw8& raw, float* out) {
  if (dtype == PKV_DTYPE_F32) {
#pragma unroll
    for (int i = 0; i < 8; ++i) out[i] = std::bit_cast<float>(raw.word[i]);
  } else if (dtype == PKV_DTYPE_BF16) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      out[2 * i] = std::bit_cast<float>(raw.word[i] << 16);
      out[2 * i + 1] = std::bit_cast<float>(raw.word[i] & 0xffff0000U);
    }
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      out[2 * i] = f16_value(static_cast<uint16_t>(raw.word[i]));
      out[2 * i + 1] = f16_value(static_cast<uint16_t>(raw.word[i] >> 16));
    }
  }
}

}  // namespace PKV_GPU_NS
