// Argument checks that the single stage, the attention of a plan and the whole step share.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/codec/codec.h"
#include "core/pipeline/checks.h"

namespace pkv {

// K and V of one part or of the fetched rows. Stays where it is: tensors point into it.
struct KeysValues {
  std::optional<TensorView> keys;    // [b, h, t, d]
  std::optional<TensorView> values;  // [b, h, t, dv]; none: the first dv coordinates of the keys
  int64_t prefix_shape[4] = {};

  int64_t tokens() const { return keys->extent(2); }
  pkv_tensor values_tensor(int32_t value_dim) {
    if (values) return values->tensor();
    return prefix_view(keys->tensor(), value_dim, prefix_shape);
  }
};
// `entries` and `tokens`: what the first and the third axis may be.
absl::Status check_keys_values(const Device& device, const std::string& name,
                               const pkv_tensor& keys, const pkv_tensor& values,
                               const Axis& entries, const pkv_geometry& g, const Axis& tokens,
                               KeysValues& out, Access access = Access::kInput);

// Query and output, which do not overlap.
struct QueryOutput {
  TensorView query;   // [b, hq, d]
  TensorView output;  // [b, hq, dv]
};
absl::StatusOr<QueryOutput> check_query_output(const Device& device, const pkv_tensor& query,
                                               const pkv_tensor& output, int32_t batch,
                                               int32_t query_heads, const pkv_geometry& g);
absl::Status check_output_apart(const TensorView& output, const std::string& name,
                                const KeysValues& rows);

std::string part_name(int64_t part);
absl::Status check_part_length(int64_t part, int64_t entry, int64_t length, int64_t tokens);
absl::Status check_has_values(const pkv_geometry& g);

// Whether the tail looks at sketched values.
bool reads_samples(const pkv_attend_args& a);
// Of the hits, what the tail and the rows need.
absl::Status check_attend_hits(const pkv_attend_args& a);

}  // namespace pkv
