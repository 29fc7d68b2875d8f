#include "tools/step.h"

#include "tools/config_options.h"
#include "tools/element.h"

namespace pkv::cli {
namespace {

enum IntArray { kPositions, kCounts, kCandidates, kCandidateCounts };
enum FloatArray { kScores, kEstimates, kRestLse, kSampleEstimates };

}  // namespace

absl::StatusOr<HitSizes> hit_sizes(const pkv_plan* plan, const pkv_config* config, int64_t kv_heads,
                                   int64_t query_heads) {
  HitSizes sizes = {kv_heads, query_heads, 0, 0, 0};
  CLI_ASSIGN_OR_RETURN(const std::string k, config_value(config, "k"));
  CLI_ASSIGN_OR_RETURN(sizes.k, parse_integer("k", k, 0, INT32_MAX));
  CLI_ASSIGN_OR_RETURN(const std::string samples, config_value(config, "tail_samples"));
  CLI_ASSIGN_OR_RETURN(sizes.samples, parse_integer("tail_samples", samples, 0, INT32_MAX));
  CLI_RETURN_IF_ERROR(from_library(pkv_plan_candidates(plan, &sizes.candidates), About::kOptions));
  return sizes;
}

absl::StatusOr<std::unique_ptr<Hits>> Hits::create(const Engine& engine, const HitSizes& sizes) {
  const auto& [kv_heads, query_heads, k, candidates, samples] = sizes;
  std::unique_ptr<Hits> hits(new Hits());
  hits->k_ = k;
  hits->stride_ = candidates;
  for (const int64_t count : {kv_heads * k, kv_heads, kv_heads * candidates, kv_heads}) {
    CLI_ASSIGN_OR_RETURN(auto array, DeviceArray<int32_t>::create(engine, count));
    hits->ints_.push_back(std::move(array));
  }
  for (const int64_t count :
       {kv_heads * k, query_heads * candidates, query_heads, query_heads * samples}) {
    CLI_ASSIGN_OR_RETURN(auto array, DeviceArray<float>::create(engine, count));
    hits->floats_.push_back(std::move(array));
  }
  pkv_hits& raw = hits->hits_;
  CLI_RETURN_IF_ERROR(from_library(pkv_hits_init(&raw, sizeof raw), About::kOptions));
  raw.positions = hits->ints_[kPositions].device();
  raw.counts = hits->ints_[kCounts].device();
  raw.candidates = hits->ints_[kCandidates].device();
  raw.candidate_counts = hits->ints_[kCandidateCounts].device();
  raw.scores = hits->floats_[kScores].device();
  raw.estimates = hits->floats_[kEstimates].device();
  raw.rest_lse = hits->floats_[kRestLse].device();
  raw.sample_estimates = hits->floats_[kSampleEstimates].device();
  return hits;
}

absl::Status Hits::download() {
  for (auto& array : ints_) CLI_RETURN_IF_ERROR(array.download());
  for (auto& array : floats_) CLI_RETURN_IF_ERROR(array.download());
  return absl::OkStatus();
}

std::span<const int32_t> Hits::positions(int64_t kv_head) const {
  const int32_t count = ints_[kCounts].host()[static_cast<size_t>(kv_head)];
  return std::span(ints_[kPositions].host())
      .subspan(static_cast<size_t>(kv_head * k_), static_cast<size_t>(count));
}

std::span<const float> Hits::scores(int64_t kv_head) const {
  return std::span(floats_[kScores].host())
      .subspan(static_cast<size_t>(kv_head * k_), positions(kv_head).size());
}

std::span<const int32_t> Hits::candidates(int64_t kv_head) const {
  const int32_t count = ints_[kCandidateCounts].host()[static_cast<size_t>(kv_head)];
  return std::span(ints_[kCandidates].host())
      .subspan(static_cast<size_t>(kv_head * stride_), static_cast<size_t>(count));
}

std::span<const float> Hits::estimates(int64_t query_head, int64_t kv_head) const {
  return std::span(floats_[kEstimates].host())
      .subspan(static_cast<size_t>(query_head * stride_), candidates(kv_head).size());
}

absl::StatusOr<Plan> create_plan(const pkv_index* index, const pkv_config* config,
                                 int64_t query_heads, int32_t sequence, About about) {
  pkv_plan_desc desc;
  CLI_RETURN_IF_ERROR(from_library(pkv_plan_desc_init(&desc, sizeof desc), about));
  desc.batch = 1;
  desc.query_heads = static_cast<int32_t>(query_heads);
  desc.owns_scratch = 1;
  desc.sequences = &sequence;
  pkv_plan* plan = nullptr;
  CLI_RETURN_IF_ERROR(from_library(pkv_plan_create(index, config, &desc, &plan), about));
  return Plan(plan);
}

}  // namespace pkv::cli
