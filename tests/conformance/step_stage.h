// A decoding step on a place through pariskv.h: codec, index, plan, then retrieve, fetch, attend,
// or all of it in one call, with scratch of the caller. docs/algorithm.md, sections 3 to 8, as a
// whole.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/conformance/attend_stage.h"
#include "tests/conformance/fetch_stage.h"
#include "tests/conformance/rerank_stage.h"

namespace pkv::conformance {

// Options by name, beyond those that the world's setup fixes.
struct StepOptions {
  const char* profile = "default";
  std::vector<std::pair<std::string, std::string>> set;
  int32_t tail = PKV_TAIL_MEAN;
  int32_t k = 16;
  int32_t tail_samples = 512;
};

struct Retrieved {
  Hits hits;
  Rows<int32_t> candidates;

  template <class F>
  static void each(F f, const Retrieved& a, const Retrieved& b) {
    f("candidates", a.candidates, b.candidates);
    Hits::each(f, a.hits, b.hits);
  }
};

// Of pkv_step_run.
struct Whole {
  Retrieved retrieved;  // empty if not wanted
  Attention attention;

  template <class F>
  static void each(F f, const Whole& a, const Whole& b) {
    Retrieved::each(f, a.retrieved, b.retrieved);
    Attention::each(f, a.attention, b.attention);
  }
};

// How K and V of a sequence lie in host memory that the device reads.
enum class HostRows {
  kApart,       // K [h, t, d], V [h, t, dv]
  kSideBySide,  // [h, t, d + dv]
  kTokenMajor,  // K [t, h, d], V [t, h, dv]
};

class Step {
 public:
  // Imports the world's codec and appends its keys, each sequence in two pieces.
  Step(const Place& place, const World& world, const StepOptions& options, float scale);

  // Entries per row of candidates and estimates.
  int64_t candidates_stride() const { return stride_; }
  // Records of all rows, with good keys counted where they are no NaN.
  std::vector<Records> records() const;

  // Estimates, the rest and samples are asked for where the tail reads them.
  Retrieved retrieve(uint8_t fill) const;
  // `input`: source, positions. `prefix`: values come with the keys.
  Fetched fetch(uint8_t fill, const FetchInput& input) const;
  Attention attend(uint8_t fill, const AttendInput& input) const;
  // `source`: keys, values, in memory of a kind (PKV_ALLOC_*). `input`: query, parts, output.
  Whole run(uint8_t fill, const FetchInput& source, const AttendInput& input, bool wants_hits,
            int32_t source_kind = PKV_ALLOC_DEVICE) const;

  // Another world's tokens in place of those that are there; the codec stays.
  void refill(const World& world) const;
  // The same tokens in one piece, from host memory.
  void refill_from_host(const World& world, HostRows rows) const;
  // Later runs have a new row cache, for as many rows per (sequence, KV head).
  void keep_rows(int32_t rows);
  pkv_row_cache_stats row_cache_stats() const;

 private:
  template <class T>
  using Owner = std::unique_ptr<T, void (*)(T*)>;

  void configure(const World& world, const StepOptions& options, float scale);
  void import_codec(const World& world);
  void append(const World& world) const;
  void make_plan(const World& world);
  void* scratch(Session& session) const;
  pkv_hits hits_out(Session& session) const;
  Retrieved read_hits(const Session& session, const pkv_hits& hits) const;
  // Waits for the stream, so that a failure of enqueued work is this call's.
  pkv_status passed(pkv_status status) const;
  std::vector<int64_t> whole(int64_t rows, int64_t stride) const;

  const Place& place_;
  const World& world_;
  StepOptions options_;
  Owner<pkv_config> config_{nullptr, pkv_config_destroy};
  Owner<pkv_codec> codec_{nullptr, pkv_codec_destroy};
  Owner<pkv_index> index_{nullptr, pkv_index_destroy};
  Owner<pkv_plan> plan_{nullptr, pkv_plan_destroy};
  Owner<pkv_row_cache> row_cache_{nullptr, pkv_row_cache_destroy};
  int64_t stride_ = 0;
};

}  // namespace pkv::conformance
