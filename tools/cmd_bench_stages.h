// The chain vote, select, rerank, fetch, attend by the stage API, each call timed.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "pariskv/pariskv_stages.h"
#include "tools/cmd_bench_data.h"
#include "tools/cmd_bench_records.h"
#include "tools/cmd_bench_shape.h"
#include "tools/engine.h"

namespace pkv::cli {

class BenchStages {
 public:
  // Each layer is to be encoded before the chain runs over it.
  static absl::StatusOr<std::unique_ptr<BenchStages>> create(const Engine& engine,
                                                             const BenchSetup& setup,
                                                             BenchData& data);

  absl::StatusOr<double> encode(int64_t layer) { return records_->encode(layer); }
  // The stages up to `last`, over a layer with a new query. What passes from one to the next is in
  // the caches as far as it is in a step. Microseconds from vote on.
  absl::StatusOr<std::vector<double>> chain(int64_t layer, BenchStage last);

 private:
  BenchStages(const Engine& engine, const BenchShape& shape, BenchData& data)
      : engine_(engine), shape_(shape), data_(data) {}
  absl::Status create_numbers();
  // Device memory that lives as long as this object.
  template <class T>
  absl::Status allocate(int64_t count, T*& out);

  pkv_tensor hit_rows(void* data) const;
  pkv_vote_args vote_args(int64_t layer) const;
  pkv_select_args select_args() const;
  pkv_rerank_args rerank_args(int64_t layer) const;
  pkv_fetch_args fetch_args(int64_t layer) const;
  pkv_attend_args attend_args(int64_t layer) const;

  const Engine& engine_;
  const BenchShape& shape_;
  BenchData& data_;
  std::unique_ptr<BenchRecords> records_;
  int64_t votes_stride_ = 0;
  std::vector<Memory> memory_;
  float* votes_ = nullptr;
  int32_t* candidates_ = nullptr;
  int32_t* candidate_counts_ = nullptr;
  int32_t* positions_ = nullptr;
  float* scores_ = nullptr;
  int32_t* counts_ = nullptr;
  float* estimates_ = nullptr;
  float* rest_lse_ = nullptr;
  float* sample_estimates_ = nullptr;
  char* row_keys_ = nullptr;
  char* row_values_ = nullptr;
  char* output_ = nullptr;
  float* lse_ = nullptr;
  int64_t hit_shape_[4] = {};
  int64_t output_shape_[3] = {};
};

}  // namespace pkv::cli
