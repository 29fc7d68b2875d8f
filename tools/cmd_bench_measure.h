// Repeats of timed calls over layers that take turns.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tools/cmd_bench_cache.h"
#include "tools/cmd_bench_options.h"
#include "tools/cmd_bench_shape.h"
#include "tools/progress.h"

namespace pkv::cli {

// One row of the result.
struct BenchRow {
  BenchStage stage;
  int64_t n;
  int64_t threads;
  int64_t layers;  // that took turns
  bool is_cold;
  double candidates;  // a share
  std::string tail;
  int64_t bytes;
  std::vector<double> times;  // us, ascending
  double repeats;             // share of the rows that the row cache had; below 0: there is none

  double median() const;
};

// What is measured together: `run` makes one run over a layer, or `calls` layers from that one on,
// and returns microseconds of one call, one for each stage.
struct BenchGroup {
  std::vector<BenchStage> stages;
  std::function<absl::StatusOr<std::vector<double>>(int64_t layer)> run;
  int64_t calls = 1;
  std::function<absl::StatusOr<double>()> repeats = nullptr;  // of a row cache, since the last call
};

class BenchMeter {
 public:
  // `work` counts runs.
  BenchMeter(const BenchOptions& options, const BenchShape& shape, int64_t threads, Reader& reader,
             Progress& work)
      : options_(options), shape_(shape), threads_(threads), reader_(reader), work_(work) {}

  // Rows of the stages that were asked for.
  absl::Status measure(const BenchGroup& group, std::vector<BenchRow>& rows);

 private:
  int64_t group_bytes(const BenchGroup& group) const;

  const BenchOptions& options_;
  const BenchShape& shape_;
  int64_t threads_;
  Reader& reader_;
  Progress& work_;
};

}  // namespace pkv::cli
