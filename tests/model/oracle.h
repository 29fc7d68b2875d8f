// What a cache must answer, made from the naive model's tokens without the cache.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "tests/model/naive.h"
#include "tests/model/planes.h"
#include "tests/model/world.h"

namespace pkv::cache_model {

// Attention of one query token, with what an error of fp32 may amount to.
struct Exact {
  std::vector<double> output;                           // [hq, dv]
  std::vector<double> lse;                              // [hq]
  std::vector<double> output_tolerance, lse_tolerance;  // [hq], without the output's rounding
};

// Softmax in double over the tokens at these positions of the layer. With `rows`, also over those
// of the zone that each KV head fetched: rows[head], positions in the sequence.
Exact attend_exactly(const World& world, const NaiveLayer& state, int32_t layer, uint64_t query,
                     const std::vector<int64_t>& positions,
                     const std::vector<std::vector<int64_t>>& rows = {});

// The codec that the zone must have.
Codec codec_of(const World& world, const Naive& naive, int32_t layer, int32_t sequence);

// An index over the zone, and a plan for one query token.
class ZoneIndex {
 public:
  ZoneIndex(const World& world, const Naive& naive, int32_t layer, int32_t sequence);

  Planes records(int32_t kv_head) const;
  const Codec& codec() const { return codec_; }
  // Which the cache must find, with tail tokens up to `tokens` of the sequence attended. Without
  // soft cap and sink logits the output is that of the plan, else there is none.
  Attended step(uint64_t query, int64_t tokens) const;

 private:
  const World& world_;
  const NaiveLayer& state_;
  int32_t layer_;
  Codec codec_;
  std::vector<uint64_t> zone_;
  Tensor keys_, values_;
  Index index_;
  std::optional<Plan> plan_;
};

}  // namespace pkv::cache_model
