// What a key record consists of: bytes per token of each canonical plane, and the accepted
// dimensions. docs/algorithm.md, sections 3 and 9; the bytes in docs/format.md. Not here: a
// backend's resident layout. Arguments are assumed valid (core/codec checks them).
#pragma once

#include <cstdint>

#include "core/format/config.h"
#include "pariskv/pariskv_types.h"

namespace pkv::format {

inline constexpr int kFormatVersion = 1;

inline constexpr int kMinHeadDim = 8;
inline constexpr int kMaxHeadDim = 576;
inline constexpr int kSubspace = 8;     // rotated coordinates that share one byte of the sign plane
inline constexpr int kCentroids = 256;  // sign patterns of a subspace
inline constexpr int64_t kMaxTokens = INT64_C(0x7fffffff);  // of one row: positions are int32
inline constexpr int kMaxK = 65536;
inline constexpr int kMaxSketchStride = 65536;
inline constexpr int kMaxTailSamples = 65536;

// Bytes per token and KV head; 0 for a plane the geometry lacks. The order is that of pkv_records.
// value_signs, value_codes and value_factors are bytes of one sketch, of which there is one per
// sketch_stride tokens; total counts the other planes alone.
struct RecordSizes {
  int signs;
  int vote_factors;
  int codes;
  int factors;
  int value_signs;
  int value_codes;
  int value_factors;
  int value_norms;
  int total;
  int sketch;  // value_signs + value_codes + value_factors
};

// Bit planes of the magnitude codes: 3 (polar4, scalar4) or 4 (scalar5).
PKV_HD constexpr int code_planes(int32_t codec) { return codec == PKV_CODEC_SCALAR5 ? 4 : 3; }

// Factors w of one key record: one per subspace (polar4) or one (scalar4, scalar5).
PKV_HD constexpr int factors_per_key(const pkv_geometry& geometry) {
  return geometry.codec == PKV_CODEC_POLAR4 ? geometry.head_dim / kSubspace : 1;
}

// Bit planes of the value sketch's codes: 0 (no sketch), 1 or 3.
PKV_HD constexpr int value_code_planes(const pkv_geometry& geometry) {
  return geometry.sketch_bits == 0 ? 0 : geometry.sketch_bits - 1;
}

PKV_HD constexpr RecordSizes record_sizes(const pkv_geometry& geometry) {
  const int plane = geometry.head_dim / kSubspace;
  const int value_plane = geometry.sketch_bits == 0 ? 0 : geometry.value_dim / kSubspace;
  RecordSizes sizes{};
  sizes.signs = plane;
  sizes.vote_factors = geometry.vote == PKV_VOTE_GRADED ? 2 : 0;
  sizes.codes = code_planes(geometry.codec) * plane;
  sizes.factors = 2 * factors_per_key(geometry);
  sizes.value_signs = value_plane;
  sizes.value_codes = value_code_planes(geometry) * value_plane;
  sizes.value_factors = geometry.sketch_bits == 0 ? 0 : 2;
  sizes.value_norms = geometry.value_norm != 0 ? 2 : 0;
  sizes.total = sizes.signs + sizes.vote_factors + sizes.codes + sizes.factors + sizes.value_norms;
  sizes.sketch = sizes.value_signs + sizes.value_codes + sizes.value_factors;
  return sizes;
}

// Sketches among the first `tokens` positions; docs/algorithm.md, section 3.5.
PKV_HD constexpr int64_t sketch_count(const pkv_geometry& geometry, int64_t tokens) {
  if (geometry.sketch_stride == 0) return 0;
  return (tokens + geometry.sketch_stride - 1) / geometry.sketch_stride;
}

// Entries of plane `plane` (0.. in the order of pkv_records) for the first `tokens` positions.
inline constexpr int kPlanes = 8;
inline constexpr int kFirstSketchPlane = 4;
inline constexpr int kLastSketchPlane = 6;
PKV_HD constexpr int64_t plane_entries(const pkv_geometry& geometry, int plane, int64_t tokens) {
  const bool is_sketch = plane >= kFirstSketchPlane && plane <= kLastSketchPlane;
  return is_sketch ? sketch_count(geometry, tokens) : tokens;
}

// Per token and KV head, sketches spread over the tokens between them.
constexpr double bytes_per_key(const pkv_geometry& geometry) {
  const RecordSizes sizes = record_sizes(geometry);
  if (geometry.sketch_stride == 0) return sizes.total;
  return sizes.total + static_cast<double>(sizes.sketch) / geometry.sketch_stride;
}

// Bytes of the records of the first `tokens` positions of a row.
PKV_HD constexpr int64_t record_bytes(const pkv_geometry& geometry, int64_t tokens) {
  const RecordSizes sizes = record_sizes(geometry);
  return tokens * sizes.total + sketch_count(geometry, tokens) * sizes.sketch;
}

}  // namespace pkv::format
