#include "core/index/index_sizes.h"

#include <algorithm>
#include <span>

#include "core/base/checked.h"
#include "core/base/dtype.h"
#include "core/base/status.h"
#include "core/base/text.h"
#include "core/format/records.h"
#include "core/pipeline/checks.h"
#include "core/pipeline/run_stage.h"
#include "core/runtime/row_bytes.h"

namespace pkv {
namespace {

// Bounds the scratch of encode; long appends go through it in several pieces.
constexpr int64_t kChunkTokens = 8192;

absl::StatusOr<int64_t> padded_product(std::string_view what, std::initializer_list<Named> sizes) {
  PKV_ASSIGN_OR_RETURN(const int64_t bytes, checked_product(what, sizes));
  const auto padded = checked_round_up(bytes, kAlignment);
  if (!padded) return absl::InvalidArgumentError(str_cat(what, " too large: ", bytes, " bytes"));
  return *padded;
}

// Scratch of encode for one chunk, for the dtypes that the backend takes, with values and without.
absl::StatusOr<int64_t> encode_scratch(const Device& device, const Codec& codec, int64_t tokens) {
  const pkv_geometry& g = codec.geometry();
  const int64_t key_shape[4] = {1, g.kv_heads, tokens, g.head_dim};
  const int64_t value_shape[4] = {1, g.kv_heads, tokens, g.value_dim};
  pkv_encode_args args{};
  args.struct_size = sizeof args;
  args.batch = 1;
  args.codec = codec.params();
  args.store.capacity = tokens;
  args.keys.device_type = device.info().device_type;
  args.keys.device_id = device.info().device_id;
  args.keys.ndim = 4;
  args.keys.shape = key_shape;
  args.values = args.keys;
  args.values.shape = value_shape;

  int64_t most = -1;
  absl::Status refusal = absl::InternalError("encode: no dtype was tried");
  const auto ask = [&] {
    const absl::StatusOr<int64_t> bytes =
        stage_scratch_bytes(device, "encode", device.backend().encode, args);
    if (bytes.ok()) {
      most = std::max(most, *bytes);
    } else {
      refusal = bytes.status();
    }
  };
  for (const pkv_dtype key_type : kFloatTypes) {
    args.keys.dtype = key_type;
    args.values.ndim = 0;
    ask();
    if (g.value_dim == 0) continue;
    args.values.ndim = 4;
    for (const pkv_dtype value_type : kFloatTypes) {
      args.values.dtype = value_type;
      ask();
    }
  }
  if (most < 0) return refusal;
  return most;
}

}  // namespace

absl::StatusOr<IndexSizes> IndexSizes::create(const Device& device, const Codec& codec,
                                              int32_t sequences, int64_t capacity) {
  const pkv_geometry& g = codec.geometry();
  PKV_RETURN_IF_ERROR(check_range("sequences", sequences, 1, kMaxSequences));
  PKV_RETURN_IF_ERROR(check_range("capacity", capacity, 1, format::kMaxTokens));
  IndexSizes s{};
  s.sequences = sequences;
  s.capacity = capacity;
  s.chunk_tokens = std::min(capacity, kChunkTokens);
  PKV_ASSIGN_OR_RETURN(s.row_bytes, store_row_bytes(device, g, capacity));
  PKV_ASSIGN_OR_RETURN(
      s.rows, checked_product("rows", {{"sequences", sequences}, {"kv_heads", g.kv_heads}}));
  const absl::StatusOr<int64_t> records =
      checked_product("key records", {{"rows", s.rows}, {"row_bytes", s.row_bytes}});
  if (!records.ok()) {
    return absl::InvalidArgumentError(str_cat("key records too large: sequences=", sequences,
                                              " kv_heads=", g.kv_heads, " capacity=", capacity,
                                              " row_bytes=", s.row_bytes));
  }
  s.record_bytes = *records;
  const int64_t subspaces = g.head_dim / format::kSubspace;
  PKV_ASSIGN_OR_RETURN(const int64_t row_occupancy,
                       checked_product("occupancy", {{"subspaces", subspaces},
                                                     {"centroids", format::kCentroids},
                                                     {"bytes", int64_t{sizeof(int32_t)}}}));
  const int64_t tier_rows = g.vote == PKV_VOTE_TIER ? s.rows : 0;
  PKV_ASSIGN_OR_RETURN(s.occupancy_bytes, checked_product("occupancy", {{"rows", tier_rows},
                                                                        {"bytes", row_occupancy}}));
  PKV_ASSIGN_OR_RETURN(s.value_sum_bytes,
                       checked_product("value sums", {{"rows", s.rows},
                                                      {"value_dim", g.value_dim},
                                                      {"bytes", int64_t{sizeof(double)}}}));
  PKV_ASSIGN_OR_RETURN(
      s.good_count_bytes,
      checked_product("good counts", {{"rows", s.rows}, {"bytes", int64_t{sizeof(int64_t)}}}));
  s.length_bytes = int64_t{sequences} * int64_t{sizeof(int64_t)};
  PKV_ASSIGN_OR_RETURN(
      s.sequence_bytes,
      padded_product("sequences", {{"sequences", sequences}, {"bytes", int64_t{sizeof(int32_t)}}}));
  s.constant_bytes = s.sequence_bytes + (s.chunk_tokens + 1) * int64_t{sizeof(int64_t)};
  PKV_ASSIGN_OR_RETURN(
      s.first_bad_bytes,
      padded_product("bad keys", {{"kv_heads", g.kv_heads}, {"bytes", int64_t{sizeof(int64_t)}}}));
  // Each of the three sums is padded by itself.
  PKV_ASSIGN_OR_RETURN(s.backup_bytes,
                       checked_sum("backups", {{"occupancy", s.occupancy_bytes / sequences},
                                               {"value_sums", s.value_sum_bytes / sequences},
                                               {"good_counts", s.good_count_bytes / sequences},
                                               {"padding", 4 * kAlignment}}));
  s.backup_bytes -= s.backup_bytes % kAlignment;
  PKV_ASSIGN_OR_RETURN(s.encode_bytes, encode_scratch(device, codec, s.chunk_tokens));
  PKV_ASSIGN_OR_RETURN(s.workspace_bytes,
                       checked_sum("workspace", {{"first_bad", s.first_bad_bytes},
                                                 {"backup", s.backup_bytes},
                                                 {"encode", s.encode_bytes}}));
  PKV_ASSIGN_OR_RETURN(s.total_bytes, checked_sum("index", {{"records", s.record_bytes},
                                                            {"occupancy", s.occupancy_bytes},
                                                            {"value_sums", s.value_sum_bytes},
                                                            {"good_counts", s.good_count_bytes},
                                                            {"lengths", s.length_bytes},
                                                            {"constants", s.constant_bytes},
                                                            {"workspace", s.workspace_bytes}}));
  return s;
}

}  // namespace pkv
