// A small valid geometry, for tests to change.
#pragma once

#include "pariskv/pariskv_types.h"

namespace pkv {

inline pkv_geometry sample_geometry() {
  pkv_geometry geometry{};
  geometry.struct_size = sizeof(geometry);
  geometry.kv_heads = 2;
  geometry.head_dim = 24;
  geometry.value_dim = 16;
  geometry.v_source = PKV_V_SOURCE_OWN;
  geometry.codec = PKV_CODEC_SCALAR4;
  geometry.vote = PKV_VOTE_GRADED;
  geometry.rounds = 1;
  geometry.seed = 0x0123456789abcdefU;
  return geometry;
}

}  // namespace pkv
