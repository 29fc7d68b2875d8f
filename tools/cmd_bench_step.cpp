#include "tools/cmd_bench_step.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "tools/interrupt.h"

namespace pkv::cli {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kAppendTokens = 16384;  // between two looks at signals

absl::StatusOr<std::unique_ptr<Memory>> allocate(const Engine& engine, int64_t bytes) {
  CLI_ASSIGN_OR_RETURN(Memory memory, Memory::create(engine, PKV_ALLOC_DEVICE, bytes));
  return std::make_unique<Memory>(std::move(memory));
}

absl::StatusOr<Index> create_index(const Engine& engine, const BenchShape& shape,
                                   const pkv_codec* codec) {
  pkv_index* index = nullptr;
  CLI_RETURN_IF_ERROR(
      from_library(pkv_index_create(engine.device(), codec, static_cast<int32_t>(shape.batch),
                                    shape.capacity, &index),
                   About::kOptions));
  return Index(index);
}

absl::StatusOr<Plan> plan_of(const BenchShape& shape, const pkv_index* index,
                             const pkv_config* config) {
  pkv_plan_desc desc;
  CLI_RETURN_IF_ERROR(from_library(pkv_plan_desc_init(&desc, sizeof desc), About::kOptions));
  desc.batch = static_cast<int32_t>(shape.batch);
  desc.query_heads = static_cast<int32_t>(shape.query_heads);
  desc.owns_scratch = 1;
  pkv_plan* plan = nullptr;
  CLI_RETURN_IF_ERROR(from_library(pkv_plan_create(index, config, &desc, &plan), About::kOptions));
  return Plan(plan);
}

// call(0) to call(count - 1), from the first call until the stream has passed the last: the mean.
template <class Call>
absl::StatusOr<double> time_calls(const Engine& engine, int64_t count, const Call& call) {
  const auto start = Clock::now();
  for (int64_t i = 0; i < count; ++i) {
    CLI_RETURN_IF_ERROR(from_library(call(i), About::kOptions));
  }
  CLI_RETURN_IF_ERROR(engine.sync());
  const std::chrono::duration<double, std::micro> time = Clock::now() - start;
  return time.count() / static_cast<double>(count);
}

}  // namespace

absl::StatusOr<std::unique_ptr<BenchStep>> BenchStep::create(const Engine& engine,
                                                             const BenchSetup& setup,
                                                             BenchData& data) {
  const BenchShape& shape = setup.shape;
  std::unique_ptr<BenchStep> step(new BenchStep(engine, setup, data));
  for (int64_t layer = 0; layer < shape.layers; ++layer) {
    CLI_ASSIGN_OR_RETURN(Index index, create_index(engine, shape, setup.codec.get()));
    step->indexes_.push_back(std::move(index));
    if (shape.row_cache == 0) continue;
    pkv_row_cache* cache = nullptr;
    CLI_RETURN_IF_ERROR(
        from_library(pkv_row_cache_create(step->indexes_.back().get(), engine.stream(), shape.dtype,
                                          static_cast<int32_t>(shape.row_cache), &cache),
                     About::kOptions));
    step->row_caches_.emplace_back(cache);
  }
  const int64_t heads = shape.batch * shape.query_heads;
  CLI_ASSIGN_OR_RETURN(step->output_, allocate(engine, heads * shape.row_bytes));
  CLI_ASSIGN_OR_RETURN(step->lse_, allocate(engine, heads * int64_t{sizeof(float)}));
  return step;
}

absl::Status BenchStep::append(int64_t layer) {
  const BenchShape& shape = setup_.shape;
  const pkv_tensor keys = data_.keys(layer);
  const pkv_tensor values = data_.values(layer);
  for (int64_t sequence = 0; sequence < shape.batch; ++sequence) {
    for (int64_t begin = 0; begin < shape.n; begin += kAppendTokens) {
      CLI_RETURN_IF_ERROR(check_interrupt());
      const int64_t piece[] = {shape.kv_heads, std::min(kAppendTokens, shape.n - begin), shape.dim};
      const int64_t offset =
          (sequence * keys.strides[0] + begin * keys.strides[2]) * (shape.row_bytes / shape.dim);
      const auto view = [&](const pkv_tensor& whole) {
        return engine_.tensor(shape.zone_kind, static_cast<char*>(whole.data) + offset, shape.dtype,
                              piece, data_.zone_strides());
      };
      const pkv_tensor new_keys = view(keys);
      const pkv_tensor new_values = view(values);
      CLI_RETURN_IF_ERROR(
          from_library(pkv_index_append_sync(indexes_[static_cast<size_t>(layer)].get(),
                                             engine_.stream(), static_cast<int32_t>(sequence),
                                             &new_keys, shape.has_values ? &new_values : nullptr),
                       About::kOptions));
    }
  }
  return absl::OkStatus();
}

absl::Status BenchStep::create_plans() {
  plans_.clear();
  for (const Index& index : indexes_) {
    CLI_ASSIGN_OR_RETURN(Plan plan, plan_of(setup_.shape, index.get(), setup_.config.get()));
    plans_.push_back(std::move(plan));
  }
  return absl::OkStatus();
}

absl::Status BenchStep::describe(int64_t layer, int64_t call, const int64_t* output_shape,
                                 pkv_step& step) const {
  const BenchShape& shape = setup_.shape;
  CLI_RETURN_IF_ERROR(from_library(pkv_step_init(&step, sizeof step), About::kOptions));
  step.query = data_.query(call);
  step.dense_count = 2;
  for (int part = 0; part < 2; ++part) {
    step.dense[part].rows.keys = data_.dense(layer, part, 0);
    step.dense[part].rows.values = data_.dense(layer, part, 1);
  }
  if (shape.k > 0) {
    step.source.keys = data_.keys(layer);
    step.source.values = data_.values(layer);
  }
  step.output = engine_.tensor(PKV_ALLOC_DEVICE, output_->data(), shape.dtype, {output_shape, 3});
  step.lse = static_cast<float*>(lse_->data());
  if (!row_caches_.empty()) step.row_cache = row_caches_[static_cast<size_t>(layer)].get();
  return absl::OkStatus();
}

absl::StatusOr<double> BenchStep::repeats() {
  int64_t looked_up = 0;
  int64_t found = 0;
  for (const RowCache& cache : row_caches_) {
    pkv_row_cache_stats stats;
    CLI_RETURN_IF_ERROR(
        from_library(pkv_row_cache_stats_init(&stats, sizeof stats), About::kOptions));
    CLI_RETURN_IF_ERROR(from_library(
        pkv_row_cache_stats_sync(cache.get(), engine_.stream(), &stats), About::kBackend));
    looked_up += stats.looked_up;
    found += stats.found;
  }
  const int64_t wanted = looked_up - std::exchange(looked_up_, looked_up);
  const int64_t here = found - std::exchange(found_, found);
  return wanted == 0 ? 0.0 : static_cast<double>(here) / static_cast<double>(wanted);
}

absl::StatusOr<double> BenchStep::step(int64_t layer) {
  const BenchShape& shape = setup_.shape;
  const int64_t output_shape[] = {shape.batch, shape.query_heads, shape.dim};
  CLI_RETURN_IF_ERROR(row_caches_.empty() ? data_.new_queries() : data_.drift_queries(layer));
  std::vector<pkv_step> steps(static_cast<size_t>(shape.calls));
  const auto layer_of = [&](int64_t call) { return (layer + call) % shape.layers; };
  for (int64_t i = 0; i < shape.calls; ++i) {
    CLI_RETURN_IF_ERROR(describe(layer_of(i), i, output_shape, steps[static_cast<size_t>(i)]));
  }
  return time_calls(engine_, shape.calls, [&](int64_t i) {
    const pkv_plan* plan = plans_[static_cast<size_t>(layer_of(i))].get();
    return pkv_step_run(plan, engine_.stream(), &steps[static_cast<size_t>(i)]);
  });
}

absl::StatusOr<std::unique_ptr<BenchFullAttention>> BenchFullAttention::create(
    const Engine& engine, const BenchOptions& options, const BenchShape& shape, BenchData& data) {
  std::unique_ptr<BenchFullAttention> full(new BenchFullAttention(engine, shape, data));
  const OptionValues values = {{"head_dim", options.head_dim}, {"tail", "drop"}, {"k", "0"}};
  CLI_ASSIGN_OR_RETURN(full->config_, make_config("default", values));
  CLI_ASSIGN_OR_RETURN(full->codec_,
                       import_codec(engine, full->config_.get(), shape.kv_heads, shape.dim));
  CLI_ASSIGN_OR_RETURN(full->index_, create_index(engine, shape, full->codec_.get()));
  const int64_t heads = shape.batch * shape.query_heads;
  CLI_ASSIGN_OR_RETURN(full->output_, allocate(engine, heads * shape.row_bytes));
  CLI_ASSIGN_OR_RETURN(full->lse_, allocate(engine, heads * int64_t{sizeof(float)}));
  return full;
}

absl::Status BenchFullAttention::create_plan() {
  CLI_ASSIGN_OR_RETURN(plan_, plan_of(shape_, index_.get(), config_.get()));
  return absl::OkStatus();
}

absl::Status BenchFullAttention::describe(int64_t layer, int64_t call, const int64_t* output_shape,
                                          pkv_attention& attention) const {
  CLI_RETURN_IF_ERROR(
      from_library(pkv_attention_init(&attention, sizeof attention), About::kOptions));
  attention.query = data_.query(call);
  attention.dense_count = 3;
  attention.dense[0].rows.keys = data_.dense(layer, 0, 0);
  attention.dense[0].rows.values = data_.dense(layer, 0, 1);
  attention.dense[1].rows.keys = data_.keys(layer);
  attention.dense[1].rows.values = data_.values(layer);
  attention.dense[2].rows.keys = data_.dense(layer, 1, 0);
  attention.dense[2].rows.values = data_.dense(layer, 1, 1);
  attention.output =
      engine_.tensor(PKV_ALLOC_DEVICE, output_->data(), shape_.dtype, {output_shape, 3});
  attention.lse = static_cast<float*>(lse_->data());
  return absl::OkStatus();
}

absl::StatusOr<double> BenchFullAttention::attend(int64_t layer) {
  const int64_t output_shape[] = {shape_.batch, shape_.query_heads, shape_.dim};
  CLI_RETURN_IF_ERROR(data_.new_queries());
  std::vector<pkv_attention> calls(static_cast<size_t>(shape_.calls));
  for (int64_t i = 0; i < shape_.calls; ++i) {
    CLI_RETURN_IF_ERROR(
        describe((layer + i) % shape_.layers, i, output_shape, calls[static_cast<size_t>(i)]));
  }
  return time_calls(engine_, shape_.calls, [&](int64_t i) {
    return pkv_attend(plan_.get(), engine_.stream(), &calls[static_cast<size_t>(i)]);
  });
}

}  // namespace pkv::cli
