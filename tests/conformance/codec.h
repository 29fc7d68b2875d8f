// The codec of a case: its geometry and the parameters of all KV heads, in host memory.
// docs/algorithm.md, section 2.
#pragma once

#include <cstdint>
#include <vector>

#include "tests/conformance/random.h"
#include "tests/conformance/session.h"

namespace pkv::conformance {

struct Codec {
  pkv_geometry geometry = {};
  std::vector<int32_t> set_of;       // [sequences]; empty: one set for all
  std::vector<float> center;         // [sets, h, d]
  std::vector<float> balance;        // [sets, h, d]
  std::vector<float> inv_balance;    // [sets, h, d]
  std::vector<float> signs_1;        // [d]
  std::vector<float> signs_2;        // [d]; empty if the rotation has one block and one round
  std::vector<float> value_center;   // [sets, h, dv]; this and the following only with a sketch
  std::vector<float> value_signs_1;  // [dv]
  std::vector<float> value_signs_2;  // [dv]; empty for a power of two

  int32_t heads() const { return geometry.kv_heads; }
  int32_t d() const { return geometry.head_dim; }
  int32_t dv() const { return geometry.value_dim; }

  // That of one sequence, with its set alone.
  Codec of_sequence(int32_t sequence) const;
};

pkv_geometry make_geometry(int32_t kv_heads, int32_t head_dim, int32_t value_dim);

bool is_power_of_two(int32_t dim);

// Centre 0 and balance 1, the sign vectors of the seed.
Codec plain_codec(const pkv_geometry& geometry);
// Centre near 0, balance between 1/2 and 2.
Codec random_codec(const pkv_geometry& geometry, Random& random);
// The sets of several with one geometry; sequence s has set s modulo their number.
Codec joined(const std::vector<Codec>& codecs, int32_t sequences);
// After a change of balance.
void set_reciprocals(Codec& codec);

// `codec` stays the owner of the geometry. `sequences`: of each entry of the batch.
pkv_codec_params put_codec(Session& session, const Codec& codec,
                           const std::vector<int32_t>& sequences);

}  // namespace pkv::conformance
