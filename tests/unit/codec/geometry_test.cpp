// Which geometries there are. docs/algorithm.md, sections 1 and 9.
#include "core/codec/geometry.h"

#include <doctest/doctest.h>

#include <cstdint>
#include <initializer_list>

#include "tests/unit/base/check_text.h"
#include "tests/unit/codec/sample.h"

namespace pkv {
namespace {

// The refusal of a sample geometry whose `field` is `value`.
absl::Status check_with(int32_t pkv_geometry::*field, int32_t value) {
  pkv_geometry geometry = sample_geometry();
  geometry.*field = value;
  return check_geometry(geometry);
}

TEST_CASE("geometry: dimensions are multiples of 8 from 8 to 576") {
  for (const int32_t dim : {8, 24, 64, 128, 512, 576}) {
    CHECK(check_with(&pkv_geometry::head_dim, dim).ok());
    CHECK(check_with(&pkv_geometry::value_dim, dim).ok());
  }
  for (const int32_t dim : {-8, 0, 1, 7, 12, 577, 584, INT32_MIN, INT32_MAX}) {
    check_invalid(check_with(&pkv_geometry::head_dim, dim),
                  {str_cat("head_dim=", dim, ", accepted: a multiple of 8 from 8 to 576")});
    check_invalid(check_with(&pkv_geometry::value_dim, dim),
                  {str_cat("value_dim=", dim, ", accepted: a multiple of 8 from 8 to 576")});
  }
}

TEST_CASE("geometry: words outside their choices are refused with the choices") {
  check_invalid(check_with(&pkv_geometry::kv_heads, 0), {"kv_heads=0, accepted: >= 1"});
  CHECK(check_with(&pkv_geometry::kv_heads, 1).ok());
  for (const int32_t value : {0, 4}) {
    check_invalid(check_with(&pkv_geometry::codec, value),
                  {str_cat("codec=", value), "polar4", "scalar4", "scalar5"});
    check_invalid(check_with(&pkv_geometry::v_source, value),
                  {str_cat("v_source=", value), "own", "k_prefix", "none"});
  }
  for (const int32_t value : {0, 3}) {
    check_invalid(check_with(&pkv_geometry::vote, value),
                  {str_cat("vote=", value), "tier", "graded"});
    check_invalid(check_with(&pkv_geometry::rounds, value),
                  {str_cat("rounds=", value, ", accepted: 1 or 2")});
  }
  for (const int32_t value : {-1, 2}) {
    check_invalid(check_with(&pkv_geometry::value_norm, value),
                  {str_cat("value_norm=", value, ", accepted: 0 or 1")});
  }
  for (const int32_t value : {-2, 1, 3, 5}) {
    check_invalid(check_with(&pkv_geometry::sketch_bits, value),
                  {str_cat("sketch_bits=", value, ", accepted: 0 (no sketch), 2 or 4")});
  }
}

TEST_CASE("geometry: every choice there is, is accepted") {
  for (const int32_t codec : {PKV_CODEC_POLAR4, PKV_CODEC_SCALAR4, PKV_CODEC_SCALAR5}) {
    CHECK(check_with(&pkv_geometry::codec, codec).ok());
  }
  CHECK(check_with(&pkv_geometry::vote, PKV_VOTE_TIER).ok());
  CHECK(check_with(&pkv_geometry::vote, PKV_VOTE_GRADED).ok());
  CHECK(check_with(&pkv_geometry::value_norm, 1).ok());
}

TEST_CASE("geometry: a sketch has a stride of 1 to 65536, no sketch has none") {
  pkv_geometry geometry = sample_geometry();
  for (const int32_t bits : {2, 4}) {
    geometry.sketch_bits = bits;
    for (const int32_t stride : {1, 2, 3, 16, 65536}) {
      geometry.sketch_stride = stride;
      CHECK(check_geometry(geometry).ok());
    }
    for (const int32_t stride : {INT32_MIN, -1, 0, 65537, INT32_MAX}) {
      geometry.sketch_stride = stride;
      check_invalid(check_geometry(geometry),
                    {str_cat("sketch_stride=", stride, ", accepted: 1..65536 with a sketch")});
    }
  }
  geometry.sketch_bits = 0;
  for (const int32_t stride : {-1, 1, 16}) {
    geometry.sketch_stride = stride;
    check_invalid(check_geometry(geometry),
                  {str_cat("sketch_stride=", stride, ", accepted: 0 with sketch_bits=0")});
  }
  geometry.sketch_stride = 0;
  CHECK(check_geometry(geometry).ok());
}

TEST_CASE("geometry: two rounds need a power of two") {
  pkv_geometry geometry = sample_geometry();
  geometry.rounds = 2;
  for (const int32_t dim : {8, 64, 512}) {
    geometry.head_dim = dim;
    CHECK(check_geometry(geometry).ok());
  }
  for (const int32_t dim : {24, 96, 576}) {
    geometry.head_dim = dim;
    check_invalid(check_geometry(geometry), {str_cat("rounds=2, accepted: 1 with head_dim=", dim)});
  }
}

TEST_CASE("geometry: value_dim is 0 exactly without values, and within the key with k_prefix") {
  pkv_geometry geometry = sample_geometry();
  geometry.v_source = PKV_V_SOURCE_NONE;
  check_invalid(check_geometry(geometry), {"value_dim=16, accepted: 0 with v_source=none"});
  geometry.value_dim = 0;
  CHECK(check_geometry(geometry).ok());
  geometry.v_source = PKV_V_SOURCE_OWN;
  check_invalid(check_geometry(geometry), {"value_dim=0", "multiple of 8", "v_source=none"});

  geometry.v_source = PKV_V_SOURCE_K_PREFIX;
  geometry.value_dim = geometry.head_dim;
  CHECK(check_geometry(geometry).ok());
  geometry.value_dim = geometry.head_dim + 8;
  check_invalid(check_geometry(geometry),
                {"value_dim=32, accepted: up to head_dim=24 with v_source=k_prefix"});
  geometry.v_source = PKV_V_SOURCE_OWN;
  CHECK(check_geometry(geometry).ok());
}

TEST_CASE("geometry: a sketch and a norm need values") {
  pkv_geometry geometry = sample_geometry();
  geometry.v_source = PKV_V_SOURCE_NONE;
  geometry.value_dim = 0;
  geometry.sketch_bits = 2;
  geometry.sketch_stride = 1;
  check_invalid(check_geometry(geometry), {"sketch_bits=2, accepted: 0 with value_dim=0"});
  geometry.sketch_bits = geometry.sketch_stride = 0;
  geometry.value_norm = 1;
  check_invalid(check_geometry(geometry), {"value_norm=1, accepted: 0 with value_dim=0"});
}

TEST_CASE("geometry: a struct that is too short is refused, a longer one is not") {
  pkv_geometry geometry = sample_geometry();
  geometry.struct_size = sizeof(pkv_geometry) - 1;
  check_invalid(check_geometry(geometry), {"struct_size=", "accepted: >= "});
  geometry.struct_size = sizeof(pkv_geometry) + 8;
  CHECK(check_geometry(geometry).ok());
}

}  // namespace
}  // namespace pkv
