// One n of `pariskv bench`: sizes, options as numbers, and the bytes that each stage has to read.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "pariskv/pariskv_stages.h"
#include "tools/cmd_bench_options.h"
#include "tools/engine.h"
#include "tools/handles.h"

namespace pkv::cli {

// Tokens attended in full beside the zone of n keys: the sink, and the newest tokens (a local
// window of 512 and 256 that wait to be encoded).
inline constexpr int64_t kBenchDense[2] = {128, 768};

struct BenchShape {
  int64_t n = 0;
  int64_t batch = 0;
  int64_t kv_heads = 0;
  int64_t query_heads = 0;
  int64_t dim = 0;  // of keys and values
  pkv_dtype dtype = PKV_DTYPE_BF16;
  int64_t row_bytes = 0;  // of K or V of one token and KV head
  int64_t k = 0;
  int64_t candidates = 0;      // C of a row of n keys
  double candidate_share = 0;  // as asked for, or C / n
  int64_t samples = 0;         // tail_samples
  std::string tail_name;
  int32_t tail = 0;
  int32_t rank = 0;
  int32_t vote_group = 0;
  int32_t rho_of = 0;
  pkv_candidate_rule rule = {};  // gives C
  float scale = 0;
  pkv_geometry geometry = {};
  pkv_record_sizes sizes = {};
  int64_t capacity = 0;     // tokens per row of an index: n, or a dense part if that is longer
  bool has_values = false;  // whether records are made from values too
  bool is_cpu = false;      // whether device memory is the processor's
  int64_t cache_bytes = 0;  // of the largest cache in front of it, or more
  int32_t zone_kind = 0;    // PKV_ALLOC_* of K and V of the zone
  int64_t row_cache = 0;    // as BenchOptions
  double drift = 1;
  int64_t calls = 1;        // steps, or full attentions, that one wait is for
  int64_t layers = 1;       // that take turns
  int64_t zone_tokens = 0;  // held per KV head for all layers: n, plus `layer_shift` per layer
  int64_t layer_shift =
      0;  // tokens from where one layer's zone begins to where the next one's does

  int64_t rows() const { return batch * kv_heads; }
  // What a run of the stage has to read, results and intermediate numbers of the stage left out.
  int64_t bytes(BenchStage stage) const;
};

// With the codec that goes with it. A usage error where options do not go together, a system error
// where memory does not suffice.
struct BenchSetup {
  BenchShape shape;
  Config config;
  Codec codec;
};
absl::StatusOr<BenchSetup> setup_bench(const Engine& engine, const BenchOptions& options,
                                       int64_t n);

// A codec that was not fitted, for random data: balance 1, and a small centre where the config has
// one.
absl::StatusOr<Codec> import_codec(const Engine& engine, const pkv_config* config, int64_t kv_heads,
                                   int64_t dim, int64_t value_dim = 0);  // 0: `dim`

}  // namespace pkv::cli
