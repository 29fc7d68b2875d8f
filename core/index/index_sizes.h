// How large an index is: every buffer of it, before any is allocated.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "core/codec/codec.h"
#include "core/runtime/device.h"

namespace pkv {

inline constexpr int32_t kMaxSequences = 1 << 20;

struct IndexSizes {
  int32_t sequences;
  int64_t capacity;      // tokens of a row
  int64_t rows;          // sequences * kv_heads
  int64_t row_bytes;     // of records
  int64_t chunk_tokens;  // tokens that append encodes at a time

  int64_t record_bytes;     // of all rows
  int64_t occupancy_bytes;  // 0 unless tier
  int64_t value_sum_bytes;  // 0 without values
  int64_t good_count_bytes;
  int64_t length_bytes;
  int64_t sequence_bytes;   // of the constants 0 .. sequences-1, padded
  int64_t constant_bytes;   // with the counts 0 .. chunk_tokens
  int64_t first_bad_bytes;  // of the workspace: padded
  int64_t backup_bytes;     // padded, one sequence's sums
  int64_t encode_bytes;     // scratch of the backend for one chunk
  int64_t workspace_bytes;
  int64_t total_bytes;

  // INVALID_ARGUMENT: sequences, capacity, a sum past 2^63; UNIMPLEMENTED: no dtype that the
  // backend encodes.
  static absl::StatusOr<IndexSizes> create(const Device& device, const Codec& codec,
                                           int32_t sequences, int64_t capacity);
};

}  // namespace pkv
