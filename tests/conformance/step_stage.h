// A decoding step on a place through pariskv.h: codec, index, plan, then retrieve, fetch, attend,
// with scratch of the caller. docs/algorithm.md, sections 3 to 8, as a whole.
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

class Step {
 public:
  // Imports the world's codec and appends its keys, each sequence in two pieces.
  Step(const Place& place, const World& world, const StepOptions& options, float scale);

  // Entries per row of candidates and estimates.
  int64_t candidates_stride() const { return stride_; }
  // Records of all rows, with good keys counted where they are no NaN.
  std::vector<Records> records() const;

  // With tail = drop only positions, scores and counts are asked for.
  Hits retrieve(uint8_t fill, const World& world, Rows<int32_t>& candidates) const;
  // `input`: source, positions. `prefix`: values come with the keys.
  Fetched fetch(uint8_t fill, const FetchInput& input) const;
  Attention attend(uint8_t fill, const AttendInput& input) const;
  // All in one call, from the world's keys and values; of `input` the dense parts and sinks.
  Attention run(uint8_t fill, const AttendInput& input) const;

 private:
  template <class T>
  using Owner = std::unique_ptr<T, void (*)(T*)>;

  void configure(const World& world, const StepOptions& options, float scale);
  void import_codec(const World& world);
  void append(const World& world) const;
  void make_plan(const World& world);
  void* scratch(Session& session) const;
  // What pkv_attention and pkv_step share; returns what the output is read with.
  template <class Call>
  Tensor put_attention(Session& session, uint8_t fill, const AttendInput& input, Call& call) const;
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
  int64_t stride_ = 0;
};

}  // namespace pkv::conformance
