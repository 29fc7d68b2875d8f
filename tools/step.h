// What a decoding step through the C API needs beside an index: a plan, and memory for its hits.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tools/engine.h"
#include "tools/handles.h"

namespace pkv::cli {

// How large the arrays of pkv_hits are, for a batch of one.
struct HitSizes {
  int64_t kv_heads;
  int64_t query_heads;
  int64_t k;
  int64_t candidates;  // per KV head
  int64_t samples;     // per query head
};
absl::StatusOr<HitSizes> hit_sizes(const pkv_plan* plan, const pkv_config* config, int64_t kv_heads,
                                   int64_t query_heads);

// The arrays of pkv_hits for a batch of one.
class Hits {
 public:
  static absl::StatusOr<std::unique_ptr<Hits>> create(const Engine& engine, const HitSizes& sizes);

  const pkv_hits& hits() const { return hits_; }
  // Copies all of them to the host and waits.
  absl::Status download();
  // Of one KV head, after download: those in use.
  std::span<const int32_t> positions(int64_t kv_head) const;  // best first
  std::span<const float> scores(int64_t kv_head) const;
  std::span<const int32_t> candidates(int64_t kv_head) const;  // ascending
  // Of one query head, one per candidate of its KV head.
  std::span<const float> estimates(int64_t query_head, int64_t kv_head) const;

 private:
  Hits() = default;

  pkv_hits hits_ = {};
  int64_t k_ = 0;
  int64_t stride_ = 0;                      // of candidates
  std::vector<DeviceArray<int32_t>> ints_;  // positions, counts, candidates, candidate counts
  std::vector<DeviceArray<float>> floats_;  // scores, estimates, rest_lse, sample estimates
};

// A plan over one sequence that owns its scratch.
absl::StatusOr<Plan> create_plan(const pkv_index* index, const pkv_config* config,
                                 int64_t query_heads, int32_t sequence, About about);

}  // namespace pkv::cli
