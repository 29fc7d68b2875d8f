// What a decode step reads, by what it is read for: the figures behind `pariskv bench`, and what
// the model of a step's time multiplies with its coefficients.
#pragma once

#include <cstdint>

#include "pariskv/pariskv_stages.h"
#include "tools/engine.h"
#include "tools/handles.h"

namespace pkv::cli {

struct StepShape {
  int64_t batch = 1;
  int64_t kv_heads = 1;
  int64_t query_heads = 1;
  int64_t n = 0;  // keys of the zone
  int64_t k = 0;
  int64_t candidates = 0;
  int64_t samples = 0;      // tail_samples
  int32_t tail = 0;         // PKV_TAIL_*
  bool has_4_bits = false;  // of a sketch of every key; else 2
  int64_t row_bytes = 0;    // of K and V of a token and KV head
  int64_t dense = 0;        // tokens attended in full
  pkv_record_sizes sizes = {};
};

// Bytes of all rows together.
struct StepWork {
  int64_t vote_bytes = 0;     // signs and vote factors of every key
  int64_t record_bytes = 0;   // the rest of the records of candidates and samples
  int64_t sketch_bytes = 0;   // of samples, with a sketch of every key of candidates too
  int64_t fetched_bytes = 0;  // K and V rows of the hits
  int64_t dense_bytes = 0;    // K and V rows of the tokens attended in full
  int64_t zone_bytes = 0;     // K and V rows of all n keys
  int64_t estimates = 0;      // scores of candidates and samples, one per query head
  int64_t samples = 0;        // one after the other far apart in memory
  // Of candidates that become tokens, one per query head: of 2 bits, of 4.
  int64_t sketches2 = 0;
  int64_t sketches4 = 0;

  // Of the zone.
  int64_t bytes() const { return vote_bytes + record_bytes + sketch_bytes + fetched_bytes; }
};
StepWork work_of(const StepShape& shape);

// C of a row of n keys (docs/algorithm.md, section 5).
int64_t candidates_of(double share, int64_t n, int64_t k);

int32_t tail_number(const std::string& name);

// Sizes of a codec's records.
absl::StatusOr<pkv_record_sizes> record_sizes(const pkv_codec* codec);

}  // namespace pkv::cli
