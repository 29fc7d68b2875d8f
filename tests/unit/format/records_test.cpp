// Bytes per token of every plane. docs/algorithm.md, section 3.
#include "core/format/records.h"

#include <doctest/doctest.h>

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
  CHECK(sizes.total == 68 + 18);

  g.sketch_bits = 4;
  g.value_norm = 1;
  sizes = record_sizes(g);
  CHECK(sizes.value_codes == 24);
  CHECK(sizes.value_norms == 2);
  CHECK(sizes.total == 68 + 8 + 24 + 2 + 2);
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
