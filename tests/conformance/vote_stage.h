// Stages vote and select on a place. docs/algorithm.md, sections 4 and 5.
#pragma once

#include <cstdint>
#include <vector>

#include "tests/conformance/world.h"

namespace pkv::conformance {

struct VoteInput {
  Tensor queries;  // [b, hq, d]
  Batch batch;
  int32_t query_heads = 1;
  int32_t vote_group = PKV_VOTE_GROUP_SUM;
  int32_t rho_of = PKV_RHO_OF_KEYS;
  int64_t votes_stride = 0;
  bool is_wide = false;  // rows of votes reach over 2^32 bytes, whatever votes_stride says
};

struct Votes {
  Rows<float> votes;  // [b * h][length]

  template <class F>
  static void each(F f, const Votes& a, const Votes& b) {
    f("votes", a.votes, b.votes);
  }
};

// max_length and votes_stride beyond the longest row.
VoteInput vote_input(const World& world);
Votes run_vote(const Place& place, uint8_t fill, const Codec& codec, const Zone& zone,
               const VoteInput& input);

struct SelectInput {
  std::vector<int64_t> lengths;  // [b]
  int32_t heads = 1;
  Rows<float> votes;  // [b * h][length]
  int64_t max_length = 0;
  int64_t votes_stride = 0;
  bool is_wide = false;  // as in VoteInput
  pkv_candidate_rule rule = {};
  int64_t candidates_stride = 0;
};

struct Candidates {
  Rows<int32_t> candidates;     // [b * h][stride], fillers included
  std::vector<int32_t> counts;  // [b * h]

  template <class F>
  static void each(F f, const Candidates& a, const Candidates& b) {
    f("candidates", a.candidates, b.candidates);
    f("candidate_counts", a.counts, b.counts);
  }
};

// One share for every n.
pkv_candidate_rule share_rule(int64_t ppm, int32_t k);
// Votes with an infinity behind each row; strides beyond what is needed.
SelectInput select_input(const Rows<float>& votes, const std::vector<int64_t>& lengths,
                         int32_t heads, const pkv_candidate_rule& rule);
Candidates run_select(const Place& place, uint8_t fill, const SelectInput& input);

}  // namespace pkv::conformance
