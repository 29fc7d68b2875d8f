#include "core/codec/geometry.h"

#include <bit>
#include <cstddef>
#include <string_view>

#include "core/base/status.h"
#include "core/base/text.h"
#include "core/format/records.h"

namespace pkv {
namespace {

absl::Status refuse(std::string_view field, int64_t value, std::string_view accepted) {
  return absl::InvalidArgumentError(str_cat(field, "=", value, ", accepted: ", accepted));
}

bool is_within(int32_t value, int32_t min, int32_t max) { return value >= min && value <= max; }

bool is_dim(int32_t value) {
  return is_within(value, format::kMinHeadDim, format::kMaxHeadDim) &&
         value % format::kSubspace == 0;
}

absl::Status check_values(const pkv_geometry& g) {
  constexpr std::string_view kDims = "a multiple of 8 from 8 to 576";
  if (!is_within(g.v_source, PKV_V_SOURCE_OWN, PKV_V_SOURCE_NONE)) {
    return refuse("v_source", g.v_source, "1 (own), 2 (k_prefix) or 3 (none)");
  }
  if (g.v_source == PKV_V_SOURCE_NONE && g.value_dim != 0) {
    return refuse("value_dim", g.value_dim, "0 with v_source=none");
  }
  if (g.v_source != PKV_V_SOURCE_NONE && !is_dim(g.value_dim)) {
    return refuse("value_dim", g.value_dim, str_cat(kDims, ", or 0 with v_source=none"));
  }
  if (g.v_source == PKV_V_SOURCE_K_PREFIX && g.value_dim > g.head_dim) {
    return refuse("value_dim", g.value_dim,
                  str_cat("up to head_dim=", g.head_dim, " with v_source=k_prefix"));
  }
  if (g.sketch_bits != 0 && g.sketch_bits != 2 && g.sketch_bits != 4) {
    return refuse("sketch_bits", g.sketch_bits, "0 (no sketch), 2 or 4");
  }
  if (g.sketch_bits == 0 && g.sketch_stride != 0) {
    return refuse("sketch_stride", g.sketch_stride, "0 with sketch_bits=0");
  }
  if (g.sketch_bits != 0 && !is_within(g.sketch_stride, 1, format::kMaxSketchStride)) {
    return refuse("sketch_stride", g.sketch_stride, "1..65536 with a sketch");
  }
  if (!is_within(g.value_norm, 0, 1)) return refuse("value_norm", g.value_norm, "0 or 1");
  if (g.value_dim == 0 && g.sketch_bits != 0) {
    return refuse("sketch_bits", g.sketch_bits, "0 with value_dim=0");
  }
  if (g.value_dim == 0 && g.value_norm != 0) {
    return refuse("value_norm", g.value_norm, "0 with value_dim=0");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status check_geometry(const pkv_geometry& g) {
  if (g.struct_size < sizeof(pkv_geometry)) {
    return refuse("struct_size", g.struct_size, str_cat(">= ", sizeof(pkv_geometry)));
  }
  if (g.kv_heads < 1) return refuse("kv_heads", g.kv_heads, ">= 1");
  if (!is_dim(g.head_dim)) {
    return refuse("head_dim", g.head_dim, "a multiple of 8 from 8 to 576");
  }
  if (!is_within(g.codec, PKV_CODEC_POLAR4, PKV_CODEC_SCALAR5)) {
    return refuse("codec", g.codec, "1 (polar4), 2 (scalar4) or 3 (scalar5)");
  }
  if (!is_within(g.vote, PKV_VOTE_TIER, PKV_VOTE_GRADED)) {
    return refuse("vote", g.vote, "1 (tier) or 2 (graded)");
  }
  if (!is_within(g.rounds, 1, 2)) return refuse("rounds", g.rounds, "1 or 2");
  if (g.rounds == 2 && !std::has_single_bit(static_cast<uint32_t>(g.head_dim))) {
    return refuse("rounds", g.rounds,
                  str_cat("1 with head_dim=", g.head_dim, ", which is no power of two"));
  }
  return check_values(g);
}

}  // namespace pkv
