// Values that the tables of several stages run through.
#pragma once

#include <cstdint>

#include "pariskv/pariskv_types.h"
#include "tests/conformance/tensor.h"

namespace pkv::conformance {

// Powers of two and others, the smallest, and more than 512.
inline constexpr int32_t kDims[] = {8, 24, 64, 80, 96, 128, 192, 256, 264, 576};
inline constexpr int32_t kCodecs[] = {PKV_CODEC_POLAR4, PKV_CODEC_SCALAR4, PKV_CODEC_SCALAR5};
// Around the widths of lanes and blocks.
inline constexpr int64_t kLengths[] = {0, 1, 7, 8, 9, 31, 32, 33, 63, 64, 65, 255, 256, 257};
// Positions from one value sketch to the next: every key, odd ones, the default's.
inline constexpr int32_t kStrides[] = {1, 3, 5, 16};
// Around multiples of 16.
inline constexpr int64_t kAroundStride[] = {15, 16, 17, 31, 32, 33, 257};
inline constexpr int32_t kBatches[] = {7, 8, 9, 33};
// Tokens that a row of records has room for, beyond those in use: with d = 64 eight rows end above
// 2^32 bytes.
inline constexpr int64_t kLargeRoom = 12'000'000;
inline constexpr pkv_dtype kFloats[] = {PKV_DTYPE_F32, PKV_DTYPE_F16, PKV_DTYPE_BF16};
inline constexpr Layout kLayouts[] = {Layout::kDense,      Layout::kTokenMajor, Layout::kPadded,
                                      Layout::kReversed,   Layout::kOffset,     Layout::kShared,
                                      Layout::kWideTokens, Layout::kWideRows};

}  // namespace pkv::conformance
