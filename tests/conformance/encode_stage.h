// Stage encode on a place. docs/algorithm.md, section 3.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "tests/conformance/world.h"

namespace pkv::conformance {

// Entry i writes counts[i] records at starts[i] of sequence sequences[i], behind those of `before`.
struct EncodeInput {
  Zone before;
  Tensor keys;                   // [b, h, t, d]
  std::optional<Tensor> values;  // [b, h, t, dv]
  std::vector<int32_t> sequences;
  std::vector<int64_t> starts;
  std::vector<int64_t> counts;
  bool wants_first_bad = true;
};

struct Encoded {
  Zone zone;
  std::vector<int64_t> first_bad;  // [b * h]; empty if not wanted

  template <class F>
  static void each(F f, const Encoded& a, const Encoded& b) {
    f("records", a.zone, b.zone);
    f("first_bad", a.first_bad, b.first_bad);
  }
};

// All keys of the world's entries, into a zone with nothing in it.
EncodeInput encode_input(const World& world);

Encoded run_encode(const Place& place, uint8_t fill, const Codec& codec, const EncodeInput& input);

}  // namespace pkv::conformance
