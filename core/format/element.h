// Elements of keys, values, queries and outputs, in host memory. Rows need no alignment.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "core/format/half.h"
#include "pariskv/pariskv_types.h"

namespace pkv::format {

template <class Bits>
Bits load_unaligned(const std::byte* from) {
  std::array<std::byte, sizeof(Bits)> bytes{};
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = from[i];
  return std::bit_cast<Bits>(bytes);
}
template <class Bits>
void store_unaligned(Bits value, std::byte* to) {
  const auto bytes = std::bit_cast<std::array<std::byte, sizeof(Bits)>>(value);
  for (std::size_t i = 0; i < bytes.size(); ++i) to[i] = bytes[i];
}

// Element j of a row, exactly as fp32. dtype is f32, f16 or bf16.
inline float load_element(pkv_dtype dtype, const std::byte* row, int64_t j) {
  if (dtype == PKV_DTYPE_F32) return load_unaligned<float>(row + 4 * j);
  const auto bits = load_unaligned<uint16_t>(row + 2 * j);
  return dtype == PKV_DTYPE_F16 ? f16_to_float(bits) : bf16_to_float(bits);
}

// Rounds to nearest even.
inline void store_element(pkv_dtype dtype, std::byte* row, int64_t j, float value) {
  if (dtype == PKV_DTYPE_F32) {
    store_unaligned(value, row + 4 * j);
  } else {
    store_unaligned(dtype == PKV_DTYPE_F16 ? float_to_f16(value) : float_to_bf16(value),
                    row + 2 * j);
  }
}

}  // namespace pkv::format
