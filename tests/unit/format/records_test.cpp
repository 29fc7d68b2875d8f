// Bytes per token of every plane. docs/algorithm.md, section 3.
#include "core/format/records.h"

#include <doctest/doctest.h>

#include <cstdint>
#include <initializer_list>

namespace pkv::format {
namespace {

pkv_geometry geometry(int codec, int vote) {
  pkv_geometry g{};
  g.struct_size = sizeof(g);
  g.kv_heads = 2;
  g.head_dim = 128;
  g.value_dim = 64;
  g.v_source = PKV_V_SOURCE_OWN;
  g.codec = codec;
  g.vote = vote;
  g.rounds = 1;
  return g;
}

TEST_CASE("records: the default key takes 68 bytes at d = 128") {
  const RecordSizes sizes = record_sizes(geometry(PKV_CODEC_SCALAR4, PKV_VOTE_GRADED));
  CHECK(sizes.signs == 16);
  CHECK(sizes.vote_factors == 2);
  CHECK(sizes.codes == 48);
  CHECK(sizes.factors == 2);
  CHECK(sizes.value_signs == 0);
  CHECK(sizes.value_codes == 0);
  CHECK(sizes.value_factors == 0);
  CHECK(sizes.value_norms == 0);
  CHECK(sizes.total == 68);
}

TEST_CASE("records: polar4 has a factor per subspace, tier no vote factor") {
  const RecordSizes sizes = record_sizes(geometry(PKV_CODEC_POLAR4, PKV_VOTE_TIER));
  CHECK(sizes.vote_factors == 0);
  CHECK(sizes.codes == 48);
  CHECK(sizes.factors == 32);
  CHECK(sizes.total == 96);
}

TEST_CASE("records: scalar5 has a fourth plane of codes") {
  const RecordSizes sizes = record_sizes(geometry(PKV_CODEC_SCALAR5, PKV_VOTE_GRADED));
  CHECK(sizes.codes == 64);
  CHECK(sizes.factors == 2);
  CHECK(sizes.total == 84);
  CHECK(code_planes(PKV_CODEC_SCALAR5) == 4);
  CHECK(code_planes(PKV_CODEC_SCALAR4) == 3);
  CHECK(code_planes(PKV_CODEC_POLAR4) == 3);
}

TEST_CASE("records: the value sketch follows value_dim, the norm is one bf16") {
  pkv_geometry g = geometry(PKV_CODEC_SCALAR4, PKV_VOTE_GRADED);
  g.sketch_bits = 2;
  RecordSizes sizes = record_sizes(g);
  CHECK(sizes.value_signs == 8);
  CHECK(sizes.value_codes == 8);
  CHECK(sizes.value_factors == 2);
  CHECK(sizes.sketch == 18);
  CHECK(sizes.total == 68);

  g.sketch_bits = 4;
  g.value_norm = 1;
  sizes = record_sizes(g);
  CHECK(sizes.value_codes == 24);
  CHECK(sizes.value_norms == 2);
  CHECK(sizes.sketch == 8 + 24 + 2);
  CHECK(sizes.total == 68 + 2);
}

TEST_CASE("records: sketches are those of the multiples of the stride") {
  pkv_geometry g = geometry(PKV_CODEC_SCALAR4, PKV_VOTE_GRADED);
  CHECK(sketch_count(g, 1000) == 0);
  CHECK(bytes_per_key(g) == 68.0);
  CHECK(record_bytes(g, 1000) == 68000);
  g.sketch_bits = 4;
  for (const int stride : {1, 2, 16, 65536}) {
    CAPTURE(stride);
    g.sketch_stride = stride;
    int64_t counted = 0;  // multiples of the stride below `tokens`
    for (int64_t tokens = 0; tokens <= 70000; ++tokens) {
      bool is_right = sketch_count(g, tokens) == counted &&
                      record_bytes(g, tokens) == 68 * tokens + 34 * counted;
      for (int plane = 0; plane < kPlanes; ++plane) {
        const bool is_value = plane == 4 || plane == 5 || plane == 6;
        is_right = is_right && plane_entries(g, plane, tokens) == (is_value ? counted : tokens);
      }
      if (!is_right) FAIL("wrong for ", tokens, " tokens");
      if (tokens % stride == 0) ++counted;
    }
    CHECK(bytes_per_key(g) == 68.0 + 34.0 / stride);
    CHECK(sketch_count(g, kMaxTokens) == 1 + (kMaxTokens - 1) / stride);
  }
}

TEST_CASE("records: with head_dim 128 the default step takes 72.125 bytes") {
  pkv_geometry g = geometry(PKV_CODEC_SCALAR4, PKV_VOTE_GRADED);
  g.value_dim = 128;
  g.sketch_bits = 4;
  g.sketch_stride = 16;
  CHECK(bytes_per_key(g) == 72.125);
}

TEST_CASE("records: the largest row's bytes are not a 32-bit product") {
  pkv_geometry g = geometry(PKV_CODEC_POLAR4, PKV_VOTE_GRADED);
  g.head_dim = g.value_dim = kMaxHeadDim;
  g.sketch_bits = 4;
  g.sketch_stride = 1;
  CHECK(record_bytes(g, kMaxTokens) == kMaxTokens * (434 + 290));
}

TEST_CASE("records: the smallest and the largest head_dim") {
  pkv_geometry g = geometry(PKV_CODEC_POLAR4, PKV_VOTE_GRADED);
  g.head_dim = kMinHeadDim;
  CHECK(record_sizes(g).total == 1 + 2 + 3 + 2);
  g.head_dim = kMaxHeadDim;
  CHECK(record_sizes(g).total == 72 + 2 + 216 + 144);
  CHECK(factors_per_key(g) == 72);
}

static_assert(kFormatVersion == 1);

}  // namespace
}  // namespace pkv::format
