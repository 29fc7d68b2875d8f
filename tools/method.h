// The ways to attend that `pariskv eval` compares, each one behind the same question: what comes
// out for this query?
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/config_options.h"
#include "tools/engine.h"
#include "tools/exact.h"
#include "tools/trace.h"

namespace pkv::cli {

// Of one query. Positions count from the zone's first token.
struct Answer {
  bool takes_all_candidates = false;  // every token of the zone; then `candidates` is empty
  bool takes_all_hits = false;        // likewise `hits`
  std::vector<std::vector<int32_t>> candidates;  // [h]
  std::vector<std::vector<int32_t>> hits;        // [h]
  std::vector<float> output;                     // [hq, dv]
  double microseconds = 0;                       // of the whole step, all heads
};

class Method {
 public:
  virtual ~Method() = default;
  // Queries come in ascending order of their positions.
  virtual absl::StatusOr<Answer> answer(int64_t query, const Exact& exact) = 0;
  // Memory that the method keeps close for one token of the zone and one KV head.
  virtual double bytes_per_key() const = 0;
};

// Where regions begin and end, and which queries fit.
struct Setting {
  int64_t sink = 128;
  int64_t local = 512;
  int64_t fit_queries = 64;   // the first ones of the trace
  int64_t fit_position = 0;   // the codec sees the zone of a query here
  int64_t last_position = 0;  // of the queries to come
  int64_t interval = 1;       // by which the zone grows
  int64_t prefill = 0;        // tokens that the cache takes in one piece
};

// The library: vote, rerank, fetch, attend. The index grows with the zone.
absl::StatusOr<std::unique_ptr<Method>> create_retrieval(const Engine& engine, const Trace& trace,
                                                         const std::string& profile,
                                                         const OptionValues& options,
                                                         const Setting& setting);

// The KV cache, which takes the trace token by token behind the prefill. `is_fresh`: with a codec
// that is fitted anew for each question.
absl::StatusOr<std::unique_ptr<Method>> create_decode(const Engine& engine, const Trace& trace,
                                                      const std::string& profile,
                                                      const OptionValues& options,
                                                      const Setting& setting, bool is_fresh);

// Without an index: all tokens; sink, window and the k best tokens of the zone by exact scores;
// sink and window only.
enum class DenseKind { kFull, kExact, kStreaming };
absl::StatusOr<std::unique_ptr<Method>> create_dense(const Engine& engine, const Trace& trace,
                                                     DenseKind kind, const Setting& setting);

// The options that a trace decides: head_dim, value_dim, scale.
absl::Status set_trace_options(pkv_config* config, const Trace& trace);

}  // namespace pkv::cli
