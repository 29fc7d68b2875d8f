#include "tools/method_retrieval.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "tools/element.h"
#include "tools/interrupt.h"
#include "tools/view.h"

namespace pkv::cli {
namespace {

constexpr int64_t kAppendTokens = 4096;  // between two looks at Ctrl-C

absl::StatusOr<Codec> fit_codec(const Engine& engine, const Trace& trace, const pkv_config* config,
                                const Setting& setting) {
  const Regions regions = regions_at(setting.fit_position, setting.sink, setting.local);
  const TokenView keys(engine, trace.keys, regions.sink_end, regions.zone_tokens());
  const TokenView values(engine, trace.values, regions.sink_end, regions.zone_tokens());
  const QueryView queries = QueryView::first(engine, trace.queries, setting.fit_queries);
  pkv_codec* codec = nullptr;
  CLI_RETURN_IF_ERROR(
      from_library(pkv_codec_fit_sync(engine.device(), engine.stream(), config, &keys.heads(),
                                      setting.fit_queries == 0 ? nullptr : &queries.tensor(),
                                      &values.heads(), &codec),
                   About::kInput, trace.path));
  return Codec(codec);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Retrieval>> Retrieval::create(const Engine& engine,
                                                             const Trace& trace,
                                                             const std::string& profile,
                                                             const OptionValues& options,
                                                             const Setting& setting) {
  std::unique_ptr<Retrieval> method(new Retrieval(engine, trace, setting));
  CLI_ASSIGN_OR_RETURN(method->config_, make_config(profile, options));
  CLI_RETURN_IF_ERROR(set_trace_options(method->config_.get(), trace));
  CLI_RETURN_IF_ERROR(method->create_index());
  CLI_RETURN_IF_ERROR(method->create_step());
  return method;
}

absl::StatusOr<Answer> Retrieval::answer(int64_t query, const Exact& exact) {
  CLI_RETURN_IF_ERROR(grow(exact.regions));
  const auto start = std::chrono::steady_clock::now();
  CLI_RETURN_IF_ERROR(run(query, exact.regions));
  const auto end = std::chrono::steady_clock::now();
  CLI_RETURN_IF_ERROR(hits_->download());
  CLI_RETURN_IF_ERROR(output_->download());
  Answer answer;
  answer.microseconds = std::chrono::duration<double, std::micro>(end - start).count();
  answer.output = output_->host();
  for (int64_t head = 0; head < trace_.kv_heads(); ++head) {
    const auto hits = hits_->positions(head);
    const auto candidates = hits_->candidates(head);
    answer.hits.emplace_back(hits.begin(), hits.end());
    answer.candidates.emplace_back(candidates.begin(), candidates.end());
  }
  return answer;
}

absl::Status Retrieval::create_index() {
  CLI_ASSIGN_OR_RETURN(codec_, fit_codec(engine_, trace_, config_.get(), setting_));
  const Regions last = regions_at(setting_.last_position, setting_.sink, setting_.local);
  pkv_index* index = nullptr;
  CLI_RETURN_IF_ERROR(
      from_library(pkv_index_create(engine_.device(), codec_.get(), 1,
                                    std::max<int64_t>(1, last.zone_tokens()), &index),
                   About::kInput, trace_.path));
  index_.reset(index);
  pkv_index_stats stats;
  CLI_RETURN_IF_ERROR(from_library(pkv_index_stats_init(&stats, sizeof stats), About::kInput));
  CLI_RETURN_IF_ERROR(
      from_library(pkv_index_stats_sync(index, engine_.stream(), &stats), About::kInput));
  bytes_per_key_ = stats.bytes_per_key;
  return absl::OkStatus();
}

absl::Status Retrieval::create_step() {
  CLI_ASSIGN_OR_RETURN(
      plan_, create_plan(index_.get(), config_.get(), trace_.query_heads(), 0, About::kOptions));
  CLI_ASSIGN_OR_RETURN(const HitSizes sizes, hit_sizes(plan_.get(), config_.get(),
                                                       trace_.kv_heads(), trace_.query_heads()));
  k_ = sizes.k;
  CLI_ASSIGN_OR_RETURN(hits_, Hits::create(engine_, sizes));
  CLI_ASSIGN_OR_RETURN(
      auto output, DeviceArray<float>::create(engine_, trace_.query_heads() * trace_.value_dim()));
  output_ = std::make_unique<DeviceArray<float>>(std::move(output));
  return absl::OkStatus();
}

absl::Status Retrieval::grow(const Regions& regions) {
  for (int64_t held = indexed_; held < regions.zone_tokens(); held = indexed_) {
    CLI_RETURN_IF_ERROR(check_interrupt());
    const int64_t count = std::min(kAppendTokens, regions.zone_tokens() - held);
    const TokenView keys(engine_, trace_.keys, regions.sink_end + held, count);
    const TokenView values(engine_, trace_.values, regions.sink_end + held, count);
    CLI_RETURN_IF_ERROR(from_library(
        pkv_index_append_sync(index_.get(), engine_.stream(), 0, &keys.heads(), &values.heads()),
        About::kInput, trace_.path));
    indexed_ += count;
  }
  return absl::OkStatus();
}

absl::Status Retrieval::run(int64_t query, const Regions& regions) {
  const QueryView view = QueryView::one(engine_, trace_.queries, query);
  const TokenView zone_keys(engine_, trace_.keys, regions.sink_end, regions.zone_tokens());
  const TokenView zone_values(engine_, trace_.values, regions.sink_end, regions.zone_tokens());
  const TokenView sink_keys(engine_, trace_.keys, 0, regions.sink_end);
  const TokenView sink_values(engine_, trace_.values, 0, regions.sink_end);
  const int64_t local = regions.tokens - regions.zone_end;
  const TokenView local_keys(engine_, trace_.keys, regions.zone_end, local);
  const TokenView local_values(engine_, trace_.values, regions.zone_end, local);
  const int64_t output_shape[] = {1, trace_.query_heads(), trace_.value_dim()};

  pkv_step step;
  CLI_RETURN_IF_ERROR(from_library(pkv_step_init(&step, sizeof step), About::kOptions));
  step.query = view.tensor();
  step.dense_count = 2;
  step.dense[0].rows.keys = sink_keys.batch();
  step.dense[0].rows.values = sink_values.batch();
  step.dense[1].rows.keys = local_keys.batch();
  step.dense[1].rows.values = local_values.batch();
  if (k_ > 0) {
    step.source.keys = zone_keys.batch();
    step.source.values = zone_values.batch();
  }
  step.hits = &hits_->hits();
  step.output = engine_.tensor(PKV_ALLOC_DEVICE, output_->device(), PKV_DTYPE_F32, output_shape);
  CLI_RETURN_IF_ERROR(
      from_library(pkv_step_run(plan_.get(), engine_.stream(), &step), About::kInput, trace_.path));
  return engine_.sync();
}

absl::Status set_trace_options(pkv_config* config, const Trace& trace) {
  CLI_RETURN_IF_ERROR(set_dimension(config, "head_dim", trace.head_dim(), trace.path));
  CLI_RETURN_IF_ERROR(set_dimension(config, "value_dim", trace.value_dim(), trace.path));
  return from_library(pkv_config_set(config, "scale", trace.scale.c_str()), About::kInput,
                      trace.path);
}

absl::StatusOr<std::unique_ptr<Method>> create_retrieval(const Engine& engine, const Trace& trace,
                                                         const std::string& profile,
                                                         const OptionValues& options,
                                                         const Setting& setting) {
  return Retrieval::create(engine, trace, profile, options, setting);
}

}  // namespace pkv::cli
