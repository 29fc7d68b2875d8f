#include "tools/cmd_bench_stages.h"

#include <algorithm>
#include <utility>

namespace pkv::cli {
absl::StatusOr<std::unique_ptr<BenchStages>> BenchStages::create(const Engine& engine,
                                                                 const BenchSetup& setup,
                                                                 BenchData& data) {
  std::unique_ptr<BenchStages> stages(new BenchStages(engine, setup.shape, data));
  CLI_ASSIGN_OR_RETURN(stages->records_, BenchRecords::create(engine, setup, data));
  CLI_RETURN_IF_ERROR(stages->create_numbers());
  return stages;
}

template <class T>
absl::Status BenchStages::allocate(int64_t count, T*& out) {
  CLI_ASSIGN_OR_RETURN(Memory memory,
                       Memory::create(engine_, PKV_ALLOC_DEVICE, count * int64_t{sizeof(T)}));
  out = static_cast<T*>(memory.data());
  memory_.push_back(std::move(memory));
  return absl::OkStatus();
}

absl::Status BenchStages::create_numbers() {
  constexpr int64_t kVotesStep = 64;  // rows begin at multiples of 256 bytes
  const int64_t rows = shape_.rows();
  const int64_t heads = shape_.batch * shape_.query_heads;
  votes_stride_ = (shape_.n + kVotesStep - 1) / kVotesStep * kVotesStep;
  CLI_RETURN_IF_ERROR(allocate(rows * votes_stride_, votes_));
  CLI_RETURN_IF_ERROR(allocate(rows * shape_.candidates, candidates_));
  CLI_RETURN_IF_ERROR(allocate(rows, candidate_counts_));
  CLI_RETURN_IF_ERROR(allocate(rows * shape_.k, positions_));
  CLI_RETURN_IF_ERROR(allocate(rows * shape_.k, scores_));
  CLI_RETURN_IF_ERROR(allocate(rows, counts_));
  CLI_RETURN_IF_ERROR(allocate(heads * shape_.candidates, estimates_));
  CLI_RETURN_IF_ERROR(allocate(heads, rest_lse_));
  CLI_RETURN_IF_ERROR(allocate(heads * shape_.samples, sample_estimates_));
  CLI_RETURN_IF_ERROR(allocate(rows * shape_.k * shape_.row_bytes, row_keys_));
  CLI_RETURN_IF_ERROR(allocate(rows * shape_.k * shape_.row_bytes, row_values_));
  CLI_RETURN_IF_ERROR(allocate(heads * shape_.row_bytes, output_));
  CLI_RETURN_IF_ERROR(allocate(heads, lse_));
  const int64_t hit_shape[] = {shape_.batch, shape_.kv_heads, shape_.k, shape_.dim};
  std::copy_n(hit_shape, 4, hit_shape_);
  const int64_t output_shape[] = {shape_.batch, shape_.query_heads, shape_.dim};
  std::copy_n(output_shape, 3, output_shape_);
  return absl::OkStatus();
}

pkv_tensor BenchStages::hit_rows(void* data) const {
  return engine_.tensor(PKV_ALLOC_DEVICE, data, shape_.dtype, hit_shape_);
}

pkv_vote_args BenchStages::vote_args(int64_t layer) const {
  pkv_vote_args args = {};
  args.struct_size = sizeof args;
  args.query_heads = static_cast<int32_t>(shape_.query_heads);
  args.vote_group = shape_.vote_group;
  args.rho_of = shape_.rho_of;
  args.codec = records_->params();
  args.batch = records_->batch();
  args.queries = data_.query();
  args.store = records_->store(layer);
  args.occupancy = records_->occupancy(layer);
  args.votes = votes_;
  args.votes_stride = votes_stride_;
  return args;
}

pkv_select_args BenchStages::select_args() const {
  pkv_select_args args = {};
  args.struct_size = sizeof args;
  args.kv_heads = static_cast<int32_t>(shape_.kv_heads);
  args.batch = records_->batch();
  args.rule = shape_.rule;
  args.votes = votes_;
  args.votes_stride = votes_stride_;
  args.candidates = candidates_;
  args.candidates_stride = shape_.candidates;
  args.candidate_counts = candidate_counts_;
  return args;
}

pkv_rerank_args BenchStages::rerank_args(int64_t layer) const {
  pkv_rerank_args args = {};
  args.struct_size = sizeof args;
  args.query_heads = static_cast<int32_t>(shape_.query_heads);
  args.rank = shape_.rank;
  args.k = static_cast<int32_t>(shape_.k);
  args.tail_samples = static_cast<int32_t>(shape_.samples);
  args.scale = shape_.scale;
  args.codec = records_->params();
  args.batch = records_->batch();
  args.queries = data_.query();
  args.store = records_->store(layer);
  args.candidates = candidates_;
  args.candidates_stride = shape_.candidates;
  args.candidate_counts = candidate_counts_;
  args.positions = positions_;
  args.scores = scores_;
  args.counts = counts_;
  if (shape_.tail == PKV_TAIL_DROP) return args;
  args.estimates = estimates_;
  args.rest_lse = rest_lse_;
  if (shape_.tail != PKV_TAIL_MEAN) args.sample_estimates = sample_estimates_;
  return args;
}

pkv_fetch_args BenchStages::fetch_args(int64_t layer) const {
  pkv_fetch_args args = {};
  args.struct_size = sizeof args;
  args.kv_heads = static_cast<int32_t>(shape_.kv_heads);
  args.batch = records_->batch();
  args.source_keys = data_.keys(layer);
  args.source_values = data_.values(layer);
  args.positions = positions_;
  args.k = static_cast<int32_t>(shape_.k);
  args.keys = hit_rows(row_keys_);
  args.values = hit_rows(row_values_);
  return args;
}

pkv_attend_args BenchStages::attend_args(int64_t layer) const {
  pkv_attend_args args = {};
  args.struct_size = sizeof args;
  args.query_heads = static_cast<int32_t>(shape_.query_heads);
  args.tail = shape_.tail;
  args.part_count = 2;
  args.scale = shape_.scale;
  args.k = static_cast<int32_t>(shape_.k);
  args.tail_samples = static_cast<int32_t>(shape_.samples);
  args.codec = records_->params();
  args.batch = records_->batch();
  args.queries = data_.query();
  for (int part = 0; part < 2; ++part) {
    args.parts[part].keys = data_.dense(layer, part, 0);
    args.parts[part].values = data_.dense(layer, part, 1);
  }
  if (shape_.k > 0) {
    args.row_keys = hit_rows(row_keys_);
    args.row_values = hit_rows(row_values_);
  }
  args.positions = positions_;
  args.counts = counts_;
  args.candidates = candidates_;
  args.candidates_stride = shape_.candidates;
  args.candidate_counts = candidate_counts_;
  args.estimates = estimates_;
  args.rest_lse = rest_lse_;
  args.sample_estimates = sample_estimates_;
  args.value_sums = records_->value_sums(layer);
  args.good_counts = records_->good_counts(layer);
  args.store = records_->store(layer);
  args.output = engine_.tensor(PKV_ALLOC_DEVICE, output_, shape_.dtype, output_shape_);
  args.lse = lse_;
  return args;
}

absl::StatusOr<std::vector<double>> BenchStages::chain(int64_t layer, BenchStage last) {
  std::vector<double> times;
  const auto add = [&](const auto& args, auto stage) -> absl::Status {
    CLI_ASSIGN_OR_RETURN(const double time, time_stage(engine_, args, stage));
    times.push_back(time);
    return absl::OkStatus();
  };
  CLI_RETURN_IF_ERROR(data_.new_queries());
  CLI_RETURN_IF_ERROR(add(vote_args(layer), pkv_stage_vote_sync));
  if (last >= BenchStage::kSelect) CLI_RETURN_IF_ERROR(add(select_args(), pkv_stage_select_sync));
  if (last >= BenchStage::kRerank) {
    CLI_RETURN_IF_ERROR(add(rerank_args(layer), pkv_stage_rerank_sync));
  }
  if (last >= BenchStage::kFetch) {
    CLI_RETURN_IF_ERROR(add(fetch_args(layer), pkv_stage_fetch_sync));
  }
  if (last >= BenchStage::kAttend) {
    CLI_RETURN_IF_ERROR(add(attend_args(layer), pkv_stage_attend_sync));
  }
  return times;
}

}  // namespace pkv::cli
