// eval's methods without an index: everything, the exact best, nothing of the zone. The attention
// is still the library's.
#include <chrono>
#include <cstring>
#include <utility>

#include "tools/element.h"
#include "tools/method.h"
#include "tools/step.h"
#include "tools/view.h"

namespace pkv::cli {
namespace {

using Clock = std::chrono::steady_clock;

double microseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

class Dense : public Method {
 public:
  static absl::StatusOr<std::unique_ptr<Method>> create(const Engine& engine, const Trace& trace,
                                                        DenseKind kind, const Setting& setting) {
    std::unique_ptr<Dense> method(new Dense(engine, trace, kind));
    CLI_RETURN_IF_ERROR(method->create_plan_over_nothing(setting));
    CLI_ASSIGN_OR_RETURN(
        auto output, DeviceArray<float>::create(engine, trace.query_heads() * trace.value_dim()));
    method->output_ = std::make_unique<DeviceArray<float>>(std::move(output));
    return method;
  }

  absl::StatusOr<Answer> answer(int64_t query, const Exact& exact) override {
    const Regions& regions = exact.regions;
    Answer answer;
    answer.takes_all_candidates = kind_ != DenseKind::kStreaming;
    answer.takes_all_hits = kind_ == DenseKind::kFull;
    answer.hits.resize(static_cast<size_t>(trace_.kv_heads()));
    answer.candidates.resize(static_cast<size_t>(trace_.kv_heads()));
    const auto start = Clock::now();
    std::vector<Part> parts;
    if (kind_ == DenseKind::kFull) {
      parts.push_back(part_of(0, regions.tokens));
    } else {
      parts.push_back(part_of(0, regions.sink_end));
      parts.push_back(part_of(regions.zone_end, regions.tokens - regions.zone_end));
    }
    if (kind_ == DenseKind::kExact) {
      CLI_RETURN_IF_ERROR(pick(exact));
      parts.push_back({std::make_unique<TokenView>(engine_, picked_keys_, 0, exact.wanted),
                       std::make_unique<TokenView>(engine_, picked_values_, 0, exact.wanted)});
    }
    CLI_RETURN_IF_ERROR(attend(query, parts));
    answer.microseconds = microseconds_since(start);
    if (kind_ == DenseKind::kExact) {
      answer.microseconds += exact.search_us;
      for (int64_t head = 0; head < trace_.kv_heads(); ++head) {
        const auto best = exact.best_of(head);
        answer.hits[static_cast<size_t>(head)].assign(best.begin(), best.end());
      }
    }
    CLI_RETURN_IF_ERROR(output_->download());
    answer.output = output_->host();
    return answer;
  }

  // K and V themselves; streaming keeps nothing of the zone.
  double bytes_per_key() const override {
    if (kind_ == DenseKind::kStreaming) return 0;
    return static_cast<double>(trace_.head_dim() * dtype_bytes(trace_.keys.dtype) +
                               trace_.value_dim() * dtype_bytes(trace_.values.dtype));
  }

 private:
  struct Part {
    std::unique_ptr<TokenView> keys;
    std::unique_ptr<TokenView> values;
  };

  Dense(const Engine& engine, const Trace& trace, DenseKind kind)
      : engine_(engine), trace_(trace), kind_(kind) {}

  // pkv_attend wants a plan, and a plan an index: one without tokens, but with room for as many as
  // will be attended to, which is what the plan's scratch goes by.
  absl::Status create_plan_over_nothing(const Setting& setting) {
    CLI_ASSIGN_OR_RETURN(const Config config,
                         make_config("default", {{"tail", "drop"}, {"k", "0"}}));
    CLI_RETURN_IF_ERROR(set_trace_options(config.get(), trace_));
    const auto numbers = static_cast<size_t>(trace_.kv_heads() * trace_.head_dim());
    const std::vector<float> center(numbers, 0.0F);
    const std::vector<float> balance(numbers, 1.0F);
    pkv_codec_data data;
    CLI_RETURN_IF_ERROR(from_library(pkv_codec_data_init(&data, sizeof data), About::kInput));
    data.kv_heads = static_cast<int32_t>(trace_.kv_heads());
    data.center = center.data();
    data.balance = balance.data();
    pkv_codec* codec = nullptr;
    CLI_RETURN_IF_ERROR(
        from_library(pkv_codec_import(engine_.device(), config.get(), &data, &codec), About::kInput,
                     trace_.path));
    codec_.reset(codec);
    pkv_index* index = nullptr;
    CLI_RETURN_IF_ERROR(from_library(
        pkv_index_create(engine_.device(), codec, 1, setting.last_position + 1, &index),
        About::kInput, trace_.path));
    index_.reset(index);
    CLI_ASSIGN_OR_RETURN(plan_,
                         create_plan(index, config.get(), trace_.query_heads(), 0, About::kInput));
    return absl::OkStatus();
  }

  Part part_of(int64_t begin, int64_t count) const {
    return {std::make_unique<TokenView>(engine_, trace_.keys, begin, count),
            std::make_unique<TokenView>(engine_, trace_.values, begin, count)};
  }

  // Copies the rows of the exact best next to each other.
  absl::Status pick(const Exact& exact) {
    CLI_RETURN_IF_ERROR(pick_from(trace_.keys, exact, picked_keys_));
    return pick_from(trace_.values, exact, picked_values_);
  }
  absl::Status pick_from(const TraceTensor& source, const Exact& exact, TraceTensor& target) const {
    const int64_t row_bytes = source.shape[2] * dtype_bytes(source.dtype);
    if (target.memory == nullptr || target.shape[1] != exact.wanted) {
      CLI_ASSIGN_OR_RETURN(
          Memory memory,
          Memory::create(engine_, PKV_ALLOC_HOST, source.shape[0] * exact.wanted * row_bytes));
      target.memory = std::make_unique<Memory>(std::move(memory));
      target.dtype = source.dtype;
      target.shape = {source.shape[0], exact.wanted, source.shape[2]};
    }
    for (int64_t head = 0; head < source.shape[0]; ++head) {
      const auto best = exact.best_of(head);
      for (size_t i = 0; i < best.size(); ++i) {
        std::memcpy(target.row(head, static_cast<int64_t>(i)),
                    source.row(head, exact.regions.sink_end + best[i]),
                    static_cast<size_t>(row_bytes));
      }
    }
    return absl::OkStatus();
  }

  absl::Status attend(int64_t query, const std::vector<Part>& parts) {
    const QueryView view = QueryView::one(engine_, trace_.queries, query);
    const int64_t output_shape[] = {1, trace_.query_heads(), trace_.value_dim()};
    pkv_attention attention;
    CLI_RETURN_IF_ERROR(
        from_library(pkv_attention_init(&attention, sizeof attention), About::kInput));
    attention.query = view.tensor();
    for (const Part& part : parts) {
      pkv_rows& rows = attention.dense[attention.dense_count++].rows;
      rows.keys = part.keys->batch();
      rows.values = part.values->batch();
    }
    attention.output =
        engine_.tensor(PKV_ALLOC_DEVICE, output_->device(), PKV_DTYPE_F32, output_shape);
    CLI_RETURN_IF_ERROR(from_library(pkv_attend(plan_.get(), engine_.stream(), &attention),
                                     About::kInput, trace_.path));
    return engine_.sync();
  }

  const Engine& engine_;
  const Trace& trace_;
  DenseKind kind_;
  Codec codec_;
  Index index_;
  Plan plan_;
  std::unique_ptr<DeviceArray<float>> output_;
  TraceTensor picked_keys_;
  TraceTensor picked_values_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Method>> create_dense(const Engine& engine, const Trace& trace,
                                                     DenseKind kind, const Setting& setting) {
  return Dense::create(engine, trace, kind, setting);
}

}  // namespace pkv::cli
