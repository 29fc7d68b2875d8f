// The vote of single queries over the records of an index, by the stage API: the plain C API keeps
// votes to itself.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "pariskv/pariskv_stages.h"
#include "tools/engine.h"
#include "tools/handles.h"

namespace pkv::cli {

// The canonical records of all tokens of one sequence and KV head, in memory that host and device
// read.
class RecordCopy {
 public:
  static absl::StatusOr<RecordCopy> create(const Engine& engine, const pkv_geometry& geometry,
                                           const pkv_index* index, int32_t sequence,
                                           int32_t kv_head, int64_t tokens);

  const pkv_records& records() const { return records_; }
  // Whether the key at `position` is isolated.
  bool is_bad(int64_t position) const;

 private:
  pkv_records records_ = {};
  bool has_block_factors_ = false;
  int64_t blocks_ = 0;
  std::vector<Memory> planes_;
};

// How often each sign pattern occurs, per subspace: [d/8, 256] of the tokens [begin, end), added
// to.
void count_patterns(const RecordCopy& copy, int32_t head_dim, int64_t begin, int64_t end,
                    std::span<int32_t> counts);

// What vote needs of a config.
struct VoteChoice {
  int32_t vote_group = PKV_VOTE_GROUP_SUM;
  int32_t rho_of = PKV_RHO_OF_KEYS;
};
absl::StatusOr<VoteChoice> vote_choice(const pkv_config* config);

class Voter {
 public:
  // Copies the records of the first `tokens` tokens of a sequence.
  static absl::StatusOr<std::unique_ptr<Voter>> create(const Engine& engine, const pkv_codec* codec,
                                                       const pkv_index* index, int32_t sequence,
                                                       int64_t tokens, const VoteChoice& choice);

  // Votes of one query, [1, hq, d], over the first `length` keys: [h, length]. Lengths ascend from
  // call to call.
  absl::StatusOr<std::vector<float>> vote(const pkv_tensor& query, int32_t query_heads,
                                          int64_t length);
  const RecordCopy& records(int64_t kv_head) const {
    return records_[static_cast<size_t>(kv_head)];
  }

 private:
  explicit Voter(const Engine& engine) : engine_(engine) {}
  absl::Status upload_codec(const pkv_codec* codec);
  absl::Status import_records(const pkv_index* index, int32_t sequence, int64_t tokens);
  absl::Status upload_numbers(int64_t length);
  absl::StatusOr<const float*> upload(std::vector<float> numbers);

  const Engine& engine_;
  pkv_geometry geometry_ = {};
  VoteChoice choice_;
  pkv_codec_params params_ = {};
  pkv_store store_ = {};
  int64_t counted_ = 0;                              // tokens in occupancy
  std::vector<RecordCopy> records_;                  // [h]
  std::vector<DeviceArray<float>> floats_;           // of the codec
  std::vector<Memory> memory_;                       // of the store
  std::unique_ptr<DeviceArray<int32_t>> occupancy_;  // [h, d/8, 256]
  std::unique_ptr<DeviceArray<int32_t>> sequences_;  // [1]
  std::unique_ptr<DeviceArray<int64_t>> lengths_;    // [1]
  std::unique_ptr<DeviceArray<float>> votes_;        // [h, tokens]
};

}  // namespace pkv::cli
