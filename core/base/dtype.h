// Element types and memory places of tensors: sizes and names. pariskv_types.h has the numbers.
#pragma once

#include <cstdint>
#include <string>

#include "pariskv/pariskv_types.h"

namespace pkv {

// Keys, values and queries.
inline constexpr pkv_dtype kFloatTypes[3] = {PKV_DTYPE_F32, PKV_DTYPE_F16, PKV_DTYPE_BF16};

// Bytes of one element; 0 for a number that is no dtype.
constexpr int64_t dtype_bytes(pkv_dtype dtype) {
  switch (dtype) {
    case PKV_DTYPE_F32:
    case PKV_DTYPE_I32: return 4;
    case PKV_DTYPE_F16:
    case PKV_DTYPE_BF16: return 2;
    case PKV_DTYPE_U8: return 1;
    case PKV_DTYPE_I64: return 8;
    default: return 0;
  }
}

// "bf16"; the number itself for one that is no dtype.
std::string dtype_name(pkv_dtype dtype);

// "cpu", "cuda_host"; the number itself for one that is no device type.
std::string device_type_name(pkv_device_type type);

}  // namespace pkv
