// Random keys, values and queries for `pariskv bench`, several layers of them.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/cmd_bench_shape.h"
#include "tools/engine.h"

namespace pkv::cli {

// splitmix64
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t bits();
  float bell();  // about normal, |x| < 3.5

 private:
  uint64_t state_;
};

// Tensors are made on demand and point into this object.
class BenchData {
 public:
  static absl::StatusOr<std::unique_ptr<BenchData>> create(const Engine& engine,
                                                           const BenchShape& shape);

  // K and V of the zone, [b, h, n, d]. Layers see other tokens of the same memory, none twice where
  // memory suffices. Where rows travel to a device K and V of a token are neighbours.
  pkv_tensor keys(int64_t layer) const { return zone(0, layer); }
  pkv_tensor values(int64_t layer) const { return zone(1, layer); }
  // Strides of one sequence of these, [h, t, d], and where its tokens begin.
  const int64_t* zone_strides() const { return zone_strides_ + 1; }
  // K (0) and V (1) of a dense part, [b, h, kBenchDense[part], d], each layer its own.
  pkv_tensor dense(int64_t layer, int part, int which) const;
  // [b, hq, d] for each of shape.calls calls, others after new_queries.
  pkv_tensor query(int64_t call = 0) const;
  absl::Status new_queries();
  // Those of calls over layers from this one on: a layer's next one has shape.drift of new numbers.
  absl::Status drift_queries(int64_t layer);
  // As long as `bytes` allows, other memory than the layers' before it; for plain reads.
  const void* read_from(int64_t layer, int64_t bytes) const;

 private:
  BenchData(const Engine& engine, const BenchShape& shape);
  // Rows of random elements in memory of a kind (PKV_ALLOC_*).
  absl::StatusOr<Memory> create_rows(int32_t kind, int64_t rows);
  void fill(void* rows, int64_t count);  // host memory
  absl::Status copy(void* target, const void* source, int64_t bytes);
  pkv_tensor zone(int which, int64_t layer) const;

  const Engine& engine_;
  const BenchShape& shape_;
  Random random_;
  std::vector<char> pattern_;            // elements that rows are copied from
  std::vector<Memory> zone_;             // K and V, or both in one
  std::vector<Memory> dense_;            // [layers, part, K or V]
  std::unique_ptr<Memory> new_queries_;  // host memory that queries_ is copied from
  std::unique_ptr<Memory> queries_;
  std::vector<std::vector<float>> last_queries_;  // [layers], once they drift
  int64_t zone_shape_[4];
  int64_t token_rows_;  // rows of a token that are neighbours: 2, or K and V lie apart
  int64_t zone_strides_[4];
  int64_t dense_shape_[2][4];
  int64_t query_shape_[3];
};

}  // namespace pkv::cli
