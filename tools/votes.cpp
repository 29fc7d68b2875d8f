#include "tools/votes.h"

#include <algorithm>
#include <string>
#include <utility>

#include "tools/config_options.h"

namespace pkv::cli {
namespace {

constexpr int kPatterns = 256;
constexpr uint16_t kBadFactor = 0x7fc0;

template <class T>
absl::StatusOr<std::unique_ptr<DeviceArray<T>>> make_array(const Engine& engine, int64_t count) {
  CLI_ASSIGN_OR_RETURN(auto array, DeviceArray<T>::create(engine, count));
  return std::make_unique<DeviceArray<T>>(std::move(array));
}

}  // namespace

absl::StatusOr<RecordCopy> RecordCopy::create(const Engine& engine, const pkv_geometry& geometry,
                                              const pkv_index* index, int32_t sequence,
                                              int32_t kv_head, int64_t tokens) {
  pkv_record_sizes sizes = {};
  sizes.struct_size = sizeof sizes;
  CLI_RETURN_IF_ERROR(from_library(pkv_record_sizes_get(&geometry, &sizes), About::kInput));
  RecordCopy copy;
  copy.blocks_ = geometry.head_dim / 8;
  copy.has_block_factors_ = geometry.codec == PKV_CODEC_POLAR4;
  pkv_records& records = copy.records_;
  records.struct_size = sizeof records;
  records.row_tokens = tokens;
  const auto plane = [&](int64_t entries, int32_t entry_bytes, auto*& pointer) -> absl::Status {
    if (entry_bytes == 0) return absl::OkStatus();
    CLI_ASSIGN_OR_RETURN(Memory memory,
                         Memory::create(engine, PKV_ALLOC_HOST, entries * entry_bytes));
    pointer = static_cast<std::remove_reference_t<decltype(pointer)>>(memory.data());
    copy.planes_.push_back(std::move(memory));
    return absl::OkStatus();
  };
  const int64_t stride = std::max(1, sizes.sketch_stride);
  const int64_t sketches = (tokens + stride - 1) / stride;
  CLI_RETURN_IF_ERROR(plane(tokens, sizes.signs, records.signs));
  CLI_RETURN_IF_ERROR(plane(tokens, sizes.vote_factors, records.vote_factors));
  CLI_RETURN_IF_ERROR(plane(tokens, sizes.codes, records.codes));
  CLI_RETURN_IF_ERROR(plane(tokens, sizes.factors, records.factors));
  CLI_RETURN_IF_ERROR(plane(sketches, sizes.value_signs, records.value_signs));
  CLI_RETURN_IF_ERROR(plane(sketches, sizes.value_codes, records.value_codes));
  CLI_RETURN_IF_ERROR(plane(sketches, sizes.value_factors, records.value_factors));
  CLI_RETURN_IF_ERROR(plane(tokens, sizes.value_norms, records.value_norms));
  CLI_RETURN_IF_ERROR(from_library(
      pkv_index_export_sync(index, engine.stream(), sequence, kv_head, 0, tokens, &records),
      About::kInput));
  return copy;
}

bool RecordCopy::is_bad(int64_t position) const {
  return records_.factors[position * (has_block_factors_ ? blocks_ : 1)] == kBadFactor;
}

void count_patterns(const RecordCopy& copy, int32_t head_dim, int64_t begin, int64_t end,
                    std::span<int32_t> counts) {
  const int64_t subspaces = head_dim / 8;
  for (int64_t token = begin; token < end; ++token) {
    if (copy.is_bad(token)) continue;
    const uint8_t* signs = copy.records().signs + token * subspaces;
    for (int64_t b = 0; b < subspaces; ++b) {
      ++counts[static_cast<size_t>(b * kPatterns + signs[b])];
    }
  }
}

absl::StatusOr<VoteChoice> vote_choice(const pkv_config* config) {
  CLI_ASSIGN_OR_RETURN(const std::string group, config_value(config, "vote_group"));
  CLI_ASSIGN_OR_RETURN(const std::string rho_of, config_value(config, "rho_of"));
  VoteChoice choice;
  if (group == "heads") choice.vote_group = PKV_VOTE_GROUP_HEADS;
  if (rho_of == "centroids") choice.rho_of = PKV_RHO_OF_CENTROIDS;
  return choice;
}

absl::StatusOr<std::unique_ptr<Voter>> Voter::create(const Engine& engine, const pkv_codec* codec,
                                                     const pkv_index* index, int32_t sequence,
                                                     int64_t tokens, const VoteChoice& choice) {
  std::unique_ptr<Voter> voter(new Voter(engine));
  voter->choice_ = choice;
  CLI_RETURN_IF_ERROR(voter->upload_codec(codec));
  CLI_RETURN_IF_ERROR(voter->import_records(index, sequence, tokens));
  const int64_t heads = voter->geometry_.kv_heads;
  CLI_ASSIGN_OR_RETURN(
      voter->occupancy_,
      make_array<int32_t>(engine, heads * voter->geometry_.head_dim / 8 * kPatterns));
  CLI_ASSIGN_OR_RETURN(voter->sequences_, make_array<int32_t>(engine, 1));
  CLI_ASSIGN_OR_RETURN(voter->lengths_, make_array<int64_t>(engine, 1));
  CLI_ASSIGN_OR_RETURN(voter->votes_, make_array<float>(engine, heads * tokens));
  return voter;
}

absl::StatusOr<const float*> Voter::upload(std::vector<float> numbers) {
  CLI_ASSIGN_OR_RETURN(auto array,
                       DeviceArray<float>::create(engine_, static_cast<int64_t>(numbers.size())));
  array.host() = std::move(numbers);
  CLI_RETURN_IF_ERROR(array.upload());
  CLI_RETURN_IF_ERROR(engine_.sync());
  const float* device = array.device();
  floats_.push_back(std::move(array));
  return device;
}

absl::Status Voter::upload_codec(const pkv_codec* codec) {
  CLI_RETURN_IF_ERROR(from_library(pkv_geometry_init(&geometry_, sizeof geometry_), About::kInput));
  CLI_RETURN_IF_ERROR(from_library(pkv_codec_geometry(codec, &geometry_), About::kInput));
  pkv_codec_data data;
  CLI_RETURN_IF_ERROR(from_library(pkv_codec_data_init(&data, sizeof data), About::kInput));
  CLI_RETURN_IF_ERROR(from_library(pkv_codec_export(codec, &data), About::kInput));
  const int64_t numbers = int64_t{geometry_.kv_heads} * geometry_.head_dim;
  std::vector<float> inverse(data.balance, data.balance + numbers);
  for (float& s : inverse) s = 1.0F / s;
  params_.geometry = &geometry_;
  CLI_ASSIGN_OR_RETURN(params_.center, upload({data.center, data.center + numbers}));
  CLI_ASSIGN_OR_RETURN(params_.balance, upload({data.balance, data.balance + numbers}));
  CLI_ASSIGN_OR_RETURN(params_.inv_balance, upload(std::move(inverse)));
  const auto signs = [&](int32_t stream, int32_t count) -> absl::StatusOr<const float*> {
    std::vector<float> vector(static_cast<size_t>(count));
    CLI_RETURN_IF_ERROR(
        from_library(pkv_sign_vector(geometry_.seed, stream, count, vector.data()), About::kInput));
    return upload(std::move(vector));
  };
  CLI_ASSIGN_OR_RETURN(params_.signs_1, signs(1, geometry_.head_dim));
  CLI_ASSIGN_OR_RETURN(params_.signs_2, signs(2, geometry_.head_dim));
  if (geometry_.sketch_bits == 0) return absl::OkStatus();
  const int64_t values = int64_t{geometry_.kv_heads} * geometry_.value_dim;
  CLI_ASSIGN_OR_RETURN(params_.value_center,
                       upload({data.value_center, data.value_center + values}));
  CLI_ASSIGN_OR_RETURN(params_.value_signs_1, signs(3, geometry_.value_dim));
  CLI_ASSIGN_OR_RETURN(params_.value_signs_2, signs(4, geometry_.value_dim));
  return absl::OkStatus();
}

absl::Status Voter::import_records(const pkv_index* index, int32_t sequence, int64_t tokens) {
  store_.capacity = tokens;
  CLI_RETURN_IF_ERROR(from_library(
      pkv_store_row_bytes(engine_.device(), &geometry_, tokens, &store_.row_bytes), About::kInput));
  CLI_ASSIGN_OR_RETURN(Memory memory, Memory::create(engine_, PKV_ALLOC_DEVICE,
                                                     geometry_.kv_heads * store_.row_bytes));
  store_.base = memory.data();
  memory_.push_back(std::move(memory));
  for (int32_t head = 0; head < geometry_.kv_heads; ++head) {
    CLI_ASSIGN_OR_RETURN(RecordCopy copy,
                         RecordCopy::create(engine_, geometry_, index, sequence, head, tokens));
    CLI_RETURN_IF_ERROR(
        from_library(pkv_store_import_sync(engine_.device(), engine_.stream(), &geometry_, &store_,
                                           head, 0, tokens, &copy.records()),
                     About::kInput));
    records_.push_back(std::move(copy));
  }
  return absl::OkStatus();
}

absl::Status Voter::upload_numbers(int64_t length) {
  lengths_->host()[0] = length;
  CLI_RETURN_IF_ERROR(lengths_->upload());
  CLI_RETURN_IF_ERROR(sequences_->upload());
  const size_t entries = static_cast<size_t>(geometry_.head_dim) / 8 * kPatterns;
  for (size_t head = 0; head < records_.size(); ++head) {
    count_patterns(records_[head], geometry_.head_dim, counted_, length,
                   std::span(occupancy_->host()).subspan(head * entries, entries));
  }
  counted_ = length;
  return occupancy_->upload();
}

absl::StatusOr<std::vector<float>> Voter::vote(const pkv_tensor& query, int32_t query_heads,
                                               int64_t length) {
  CLI_RETURN_IF_ERROR(upload_numbers(length));
  pkv_vote_args args = {};
  args.struct_size = sizeof args;
  args.query_heads = query_heads;
  args.vote_group = choice_.vote_group;
  args.rho_of = choice_.rho_of;
  args.codec = params_;
  args.batch.batch = 1;
  args.batch.sequences = sequences_->device();
  args.batch.lengths = lengths_->device();
  args.batch.max_length = length;
  args.queries = query;
  args.store = store_;
  args.occupancy = geometry_.vote == PKV_VOTE_TIER ? occupancy_->device() : nullptr;
  args.votes = votes_->device();
  args.votes_stride = length;
  CLI_RETURN_IF_ERROR(
      from_library(pkv_stage_vote_sync(engine_.device(), engine_.stream(), &args), About::kInput));
  CLI_RETURN_IF_ERROR(votes_->download());
  const auto count = static_cast<std::ptrdiff_t>(geometry_.kv_heads * length);
  return std::vector<float>(votes_->host().begin(), votes_->host().begin() + count);
}

}  // namespace pkv::cli
