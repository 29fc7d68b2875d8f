// The resident layout: alignment of what is loaded wide, sizes, no overlap.
#include "backends/gpu/layout.h"

#include <algorithm>
#include <vector>

#include "doctest/doctest.h"

namespace pkv::gpu {
namespace {

pkv_geometry geometry(int32_t codec, int32_t d, int32_t dv, int32_t sketch_bits) {
  pkv_geometry g = {};
  g.kv_heads = 2;
  g.head_dim = d;
  g.value_dim = dv;
  g.v_source = PKV_V_SOURCE_OWN;
  g.codec = codec;
  g.vote = PKV_VOTE_GRADED;
  g.rounds = 1;
  g.sketch_bits = sketch_bits;
  g.sketch_stride = sketch_bits == 0 ? 0 : 16;
  g.value_norm = 1;
  return g;
}

TEST_CASE("layout: scalar4 at head_dim 128 takes 82 bytes per key, the record 64") {
  pkv_geometry g = geometry(PKV_CODEC_SCALAR4, 128, 128, 0);
  g.value_norm = 0;
  const Layout l = make_layout(g, 1 << 20);
  CHECK(l.sign_bytes == 16);
  CHECK(l.record_bytes == 64);
  CHECK(l.weight == 12);
  CHECK(l.piece_bytes == int64_t{82} << 20);
}

TEST_CASE("layout: scalar5 and polar4 at head_dim 128") {
  CHECK(make_layout(geometry(PKV_CODEC_SCALAR5, 128, 128, 0), 64).record_bytes == 80);
  const Layout polar = make_layout(geometry(PKV_CODEC_POLAR4, 128, 128, 0), 64);
  CHECK(polar.record_bytes == 96);
  CHECK(polar.weight == 64);
  CHECK(polar.weights == 16);
}

TEST_CASE("layout: every key has its own bytes, aligned to the loads") {
  for (const int32_t codec : {PKV_CODEC_POLAR4, PKV_CODEC_SCALAR4, PKV_CODEC_SCALAR5}) {
    for (const int32_t d : {8, 24, 40, 64, 72, 128, 264, 576}) {
      for (const int32_t bits : {0, 2, 4}) {
        const Layout l = make_layout(geometry(codec, d, d, bits), 128);
        std::vector<int> owners(static_cast<size_t>(l.piece_bytes));
        const auto take = [&owners](int64_t begin, int64_t bytes) {
          for (int64_t i = begin; i < begin + bytes; ++i) ++owners.at(static_cast<size_t>(i));
        };
        CHECK(l.piece_bytes % 256 == 0);
        CHECK(l.sign_bytes >= d / 8);
        CHECK(l.weight + 2 * l.weights <= l.record_bytes);
        for (int64_t key = 0; key < 128; ++key) {
          CHECK(l.sign(key) % (l.sign_bytes < 16 ? l.sign_bytes : 16) == 0);
          CHECK(l.record(key) % 16 == 0);
          take(l.sign(key), l.sign_bytes);
          take(l.factor(key), 2);
          take(l.record(key), l.record_bytes);
          take(l.norm(key), 2);
          if (bits == 0 || key % 16 != 0) continue;
          CHECK(l.sketch(key / 16) % l.sketch_chunk_bytes == 0);
          take(l.sketch(key / 16), l.sketch_bytes);
          take(l.sketch_factor(key / 16), 2);
        }
        CHECK(*std::max_element(owners.begin(), owners.end()) == 1);
      }
    }
  }
}

}  // namespace
}  // namespace pkv::gpu
