// Holds a cache against the naive model. Exact: lengths, regions, rows, codec, records, sums,
// candidates, hits; outputs within the tolerance of docs/numerics.md, section 3.
//
// What a zone must answer comes from an index (pkv_index, one piece, no pages) that is filled at
// once with the model's tokens, under a codec that is fitted here; what is attended in full from
// plain loops in double.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/model/naive.h"
#include "tests/model/world.h"

namespace pkv::cache_model {

class Mismatch : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Which sequences are in use, and length and regions in every layer of one.
void judge_use(const World& world, const Naive& naive);
void judge_regions(const World& world, const Naive& naive, int32_t sequence);
// K and V of positions [begin, begin + count).
void judge_rows(World& world, const Naive& naive, int32_t layer, int32_t sequence, int64_t begin,
                int64_t count);
// retrieve and fetch of each part (its tokens are queries): counts by the rules of section 5 and 6,
// positions in the zone, the bytes of their rows.
void judge_fetch(World& world, const Naive& naive, int32_t layer, const Parts& parts);
// Codec, records, sums, hits and outputs of one sequence for these queries.
void judge_answers(World& world, const Naive& naive, int32_t layer, int32_t sequence,
                   const std::vector<uint64_t>& queries);
// What a step left, of which `parts` were the tokens; queries those of the tokens.
void judge_step(World& world, const Naive& naive, int32_t layer, const Parts& parts, uint32_t flags,
                const Attended& attended);

}  // namespace pkv::cache_model
