// Which of a codec's parameter sets an entry of the batch has. pkv_codec_params.
#pragma once

#include <cstdint>

#include "core/format/config.h"
#include "pariskv/pariskv_backend.h"

namespace pkv::format {

// Parameters of one KV head for entry `i`: those at [set_of[i], head, 0] of `array` [sets, h, dim].
PKV_HD constexpr const float* codec_row(const pkv_codec_params& codec, const float* array,
                                        int64_t i, int32_t head, int32_t dim) {
  const int64_t set = codec.set_of == nullptr ? 0 : codec.set_of[i];
  return array + (set * codec.geometry->kv_heads + head) * dim;
}

}  // namespace pkv::format
