// The rows of `pariskv bench` as JSON and as a table. docs/cli.md, section 7.
#pragma once

#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "tools/cmd_bench_measure.h"
#include "tools/cmd_bench_options.h"
#include "tools/engine.h"

namespace pkv::cli {

// What all rows have in common.
struct BenchHead {
  std::string device;
  std::string backend;
  int64_t k = 0;
};
absl::StatusOr<BenchHead> bench_head(const Engine& engine, const BenchOptions& options);

std::string bench_json(const BenchHead& head, const BenchOptions& options,
                       std::span<const BenchRow> rows);
std::string bench_table(const BenchHead& head, const BenchOptions& options,
                        std::span<const BenchRow> rows);

}  // namespace pkv::cli
