// Full attention in double precision, by brute force: what results are judged against.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tools/trace.h"
#include "tools/zone.h"

namespace pkv::cli {

// Of one query of a trace, over the tokens it sees.
struct Exact {
  Regions regions;
  std::vector<double> weights;  // [hq, tokens] softmax weights
  std::vector<double> output;   // [hq, dv]
  std::vector<double> scores;   // [h, tokens] mean over the group's heads of <q, k> * scale
  std::vector<int32_t> best;    // [h, wanted] of the zone, from its beginning: best score first
  int64_t wanted = 0;           // min(k, tokens of the zone)
  double search_us = 0;         // time of computing `scores` and finding `best`

  std::span<const double> weights_of(int64_t query_head) const;
  std::span<const int32_t> best_of(int64_t kv_head) const;
};

Exact attend_exactly(const Trace& trace, int64_t query, const Regions& regions, int64_t k);

// The `count` positions with the largest scores; equal scores by the smaller position.
std::vector<int32_t> best_positions(std::span<const double> scores, int64_t count);

}  // namespace pkv::cli
