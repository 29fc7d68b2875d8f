// Whole decode steps, and attention over every token, by the plain C API. Timed is one call, or
// shape.calls of them with one wait.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tools/cmd_bench_data.h"
#include "tools/cmd_bench_shape.h"
#include "tools/engine.h"
#include "tools/handles.h"

namespace pkv::cli {

// An index per layer, and plans that own their scratch.
class BenchStep {
 public:
  static absl::StatusOr<std::unique_ptr<BenchStep>> create(const Engine& engine,
                                                           const BenchSetup& setup,
                                                           BenchData& data);

  // The n keys of a layer into its index.
  absl::Status append(int64_t layer);
  // For the threads that the device has now.
  absl::Status create_plans();
  // pkv_step_run over layers from this one on, each call with a new query, until all are done.
  // Microseconds of one.
  absl::StatusOr<double> step(int64_t layer);
  // Of the rows wanted since the last time this was asked, the share that the row cache had.
  absl::StatusOr<double> repeats();

 private:
  BenchStep(const Engine& engine, const BenchSetup& setup, BenchData& data)
      : engine_(engine), setup_(setup), data_(data) {}
  absl::Status describe(int64_t layer, int64_t call, const int64_t* output_shape,
                        pkv_step& step) const;

  const Engine& engine_;
  const BenchSetup& setup_;
  BenchData& data_;
  std::vector<Index> indexes_;
  std::vector<RowCache> row_caches_;  // none without shape.row_cache
  std::vector<Plan> plans_;
  int64_t looked_up_ = 0;
  int64_t found_ = 0;
  std::unique_ptr<Memory> output_;
  std::unique_ptr<Memory> lse_;
};

// The yardstick: pkv_attend over dense parts alone.
class BenchFullAttention {
 public:
  static absl::StatusOr<std::unique_ptr<BenchFullAttention>> create(const Engine& engine,
                                                                    const BenchOptions& options,
                                                                    const BenchShape& shape,
                                                                    BenchData& data);

  // For the threads that the device has now.
  absl::Status create_plan();
  // Over the n tokens of a layer's zone and its dense parts; likewise.
  absl::StatusOr<double> attend(int64_t layer);

 private:
  BenchFullAttention(const Engine& engine, const BenchShape& shape, BenchData& data)
      : engine_(engine), shape_(shape), data_(data) {}
  absl::Status describe(int64_t layer, int64_t call, const int64_t* output_shape,
                        pkv_attention& attention) const;

  const Engine& engine_;
  const BenchShape& shape_;
  BenchData& data_;
  Config config_;
  Codec codec_;
  Index index_;  // holds no token
  Plan plan_;
  std::unique_ptr<Memory> output_;
  std::unique_ptr<Memory> lse_;
};

}  // namespace pkv::cli
