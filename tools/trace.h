// A trace of one layer of a model: keys, values and queries after the position encoding, decoded
// causally. docs/cli.md has the schema.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tools/engine.h"

namespace pkv::cli {

class SafetensorsFile;

// One tensor in host memory that the device reads, dense.
struct TraceTensor {
  std::unique_ptr<Memory> memory;
  pkv_dtype dtype = 0;
  std::vector<int64_t> shape;

  // Address of the row [i, j, :] of three axes.
  char* row(int64_t i, int64_t j) const;
};

struct Trace {
  std::string name;  // of the file, without folder and extension
  std::string path;
  TraceTensor keys;                // [h, n, d]
  TraceTensor values;              // [h, n, dv]
  TraceTensor queries;             // [nq, hq, d]; heads i * hq/h .. belong to KV head i
  std::vector<int64_t> positions;  // [nq] query i sees keys 0..positions[i]
  std::vector<int64_t> kv_labels;  // [h] the model's numbers of the KV heads
  std::string scale;               // of the softmax, a plain decimal

  int64_t kv_heads() const { return keys.shape[0]; }
  int64_t tokens() const { return keys.shape[1]; }
  int64_t head_dim() const { return keys.shape[2]; }
  int64_t value_dim() const { return values.shape[2]; }
  int64_t query_count() const { return queries.shape[0]; }
  int64_t query_heads() const { return queries.shape[1]; }
  int64_t group() const { return query_heads() / kv_heads(); }
  double scale_value() const;
};

// Reads and checks all of it: tensors, shapes against each other, positions, finite numbers.
absl::StatusOr<Trace> load_trace(const Engine& engine, const std::string& path);

}  // namespace pkv::cli
