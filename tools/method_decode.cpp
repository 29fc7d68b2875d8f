// eval --decode: the trace goes through the KV cache as an engine would send it, token by token.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <utility>

#include "tools/element.h"
#include "tools/handles.h"
#include "tools/interrupt.h"
#include "tools/method.h"
#include "tools/view.h"

namespace pkv::cli {
namespace {

// Tokens [begin, begin + count) of keys or values as [count, h, d].
class RowsView {
 public:
  RowsView(const Engine& engine, const TraceTensor& source, int64_t begin, int64_t count)
      : shape_{count, source.shape[0], source.shape[2]},
        strides_{source.shape[2], source.shape[1] * source.shape[2], 1},
        tensor_(
            engine.tensor(PKV_ALLOC_HOST, source.row(0, begin), source.dtype, shape_, strides_)) {}
  RowsView(const RowsView&) = delete;
  RowsView& operator=(const RowsView&) = delete;
  const pkv_tensor& tensor() const { return tensor_; }

 private:
  int64_t shape_[3];
  int64_t strides_[3];
  pkv_tensor tensor_;
};

using CacheHandle = std::unique_ptr<pkv_cache, Destroy<pkv_cache, pkv_cache_destroy>>;

class Decode : public Method {
 public:
  Decode(const Engine& engine, const Trace& trace, const Setting& setting, bool is_fresh)
      : engine_(engine), trace_(trace), setting_(setting), is_fresh_(is_fresh) {}

  absl::Status open(const std::string& profile, const OptionValues& options) {
    CLI_ASSIGN_OR_RETURN(config_, make_config(profile, options));
    CLI_RETURN_IF_ERROR(set_trace_options(config_.get(), trace_));
    CLI_ASSIGN_OR_RETURN(const std::string k, config_value(config_.get(), "k"));
    CLI_ASSIGN_OR_RETURN(k_, parse_integer("k", k, 0, INT32_MAX));
    if (trace_.keys.dtype != trace_.values.dtype) {
      return input_error("{}: k and v of different dtypes: accepted with --decode is one",
                         trace_.path);
    }
    pkv_cache_desc desc;
    CLI_RETURN_IF_ERROR(check(pkv_cache_desc_init(&desc, sizeof desc)));
    desc.layers = 1;
    desc.sequences = 2;
    desc.kv_heads = static_cast<int32_t>(trace_.kv_heads());
    desc.query_heads = static_cast<int32_t>(trace_.query_heads());
    desc.dtype = trace_.keys.dtype;
    desc.sink = setting_.sink;
    desc.local = setting_.local;
    desc.interval = setting_.interval;
    pkv_cache* cache = nullptr;
    CLI_RETURN_IF_ERROR(check(pkv_cache_create(engine_.device(), config_.get(), &desc, &cache)));
    cache_.reset(cache);
    CLI_RETURN_IF_ERROR(check(pkv_cache_add(cache, &sequence_)));
    int64_t candidates = 0;
    CLI_RETURN_IF_ERROR(check(pkv_cache_candidates(cache, trace_.tokens(), &candidates)));
    stride_ = candidates;
    pkv_cache_stats stats;
    CLI_RETURN_IF_ERROR(check(pkv_cache_stats_init(&stats, sizeof stats)));
    CLI_RETURN_IF_ERROR(check(pkv_cache_stats_sync(cache, engine_.stream(), &stats)));
    bytes_per_key_ = stats.bytes_per_key;
    const auto ints = [&](int64_t count) { return DeviceArray<int32_t>::create(engine_, count); };
    const int64_t h = trace_.kv_heads();
    for (const int64_t count : {h * std::max<int64_t>(k_, 1), h, h * stride_, h}) {
      CLI_ASSIGN_OR_RETURN(auto array, ints(count));
      ints_.push_back(std::move(array));
    }
    CLI_ASSIGN_OR_RETURN(auto output, DeviceArray<float>::create(
                                          engine_, trace_.query_heads() * trace_.value_dim()));
    output_ = std::make_unique<DeviceArray<float>>(std::move(output));
    return append(0, std::min(setting_.prefill, trace_.tokens()));
  }

  absl::StatusOr<Answer> answer(int64_t query, const Exact& exact) override {
    while (held_ < exact.regions.tokens) {
      CLI_RETURN_IF_ERROR(check_interrupt());
      CLI_RETURN_IF_ERROR(append(held_, 1));
    }
    int32_t sequence = sequence_;
    if (is_fresh_) {
      CLI_RETURN_IF_ERROR(
          check(pkv_cache_fork(cache_.get(), engine_.stream(), sequence_, -1, &sequence)));
      const QueryView all = QueryView::first(engine_, trace_.queries, setting_.fit_queries);
      // [hq, m, d] as [m, hq, d].
      pkv_tensor sample = all.tensor();
      const int64_t shape[] = {sample.shape[1], sample.shape[0], sample.shape[2]};
      const int64_t strides[] = {sample.strides[1], sample.strides[0], 1};
      sample.shape = shape;
      sample.strides = strides;
      const pkv_status refitted = pkv_cache_refit(cache_.get(), engine_.stream(), 0, sequence,
                                                  setting_.fit_queries > 0 ? &sample : nullptr);
      // A zone without records has no codec that could be newer.
      if (refitted != PKV_FAILED_PRECONDITION) CLI_RETURN_IF_ERROR(check(refitted));
    }
    auto result = attend(query, sequence);
    if (is_fresh_) {
      CLI_RETURN_IF_ERROR(check(pkv_cache_remove(cache_.get(), engine_.stream(), sequence)));
    }
    return result;
  }
  double bytes_per_key() const override { return bytes_per_key_; }

 private:
  absl::Status check(pkv_status status) const {
    return from_library(status, About::kInput, trace_.path);
  }

  // The first --fit-queries queries stand for those of every position, in turn.
  absl::Status append(int64_t begin, int64_t count) {
    const RowsView keys(engine_, trace_.keys, begin, count);
    const RowsView values(engine_, trace_.values, begin, count);
    pkv_cache_batch batch;
    CLI_RETURN_IF_ERROR(check(pkv_cache_batch_init(&batch, sizeof batch)));
    batch.batch = 1;
    batch.sequences = &sequence_;
    batch.counts = &count;
    const pkv_tensor* queries = nullptr;
    pkv_tensor sample;
    const int64_t shape[] = {count, trace_.query_heads(), trace_.head_dim()};
    std::unique_ptr<Memory> memory;
    if (setting_.fit_queries > 0) {
      const int64_t bytes =
          trace_.query_heads() * trace_.head_dim() * dtype_bytes(trace_.queries.dtype);
      CLI_ASSIGN_OR_RETURN(Memory room, Memory::create(engine_, PKV_ALLOC_HOST,
                                                       std::max<int64_t>(1, count) * bytes));
      memory = std::make_unique<Memory>(std::move(room));
      for (int64_t i = 0; i < count; ++i) {
        std::memcpy(static_cast<char*>(memory->data()) + i * bytes,
                    trace_.queries.row((begin + i) % setting_.fit_queries, 0),
                    static_cast<size_t>(bytes));
      }
      sample = engine_.tensor(PKV_ALLOC_HOST, memory->data(), trace_.queries.dtype, shape);
      queries = &sample;
    }
    CLI_RETURN_IF_ERROR(check(pkv_cache_append(cache_.get(), engine_.stream(), 0, &batch,
                                               &keys.tensor(), &values.tensor(), queries)));
    CLI_RETURN_IF_ERROR(engine_.sync());
    held_ += count;
    return absl::OkStatus();
  }

  absl::StatusOr<Answer> attend(int64_t query, int32_t sequence) {
    const QueryView view = QueryView::one(engine_, trace_.queries, query);
    const int64_t output_shape[] = {1, trace_.query_heads(), trace_.value_dim()};
    pkv_cache_batch batch;
    pkv_cache_hits hits;
    pkv_cache_attention attention;
    CLI_RETURN_IF_ERROR(check(pkv_cache_batch_init(&batch, sizeof batch)));
    CLI_RETURN_IF_ERROR(check(pkv_cache_hits_init(&hits, sizeof hits)));
    CLI_RETURN_IF_ERROR(check(pkv_cache_attention_init(&attention, sizeof attention)));
    batch.batch = 1;
    batch.sequences = &sequence;
    hits.positions = ints_[0].device();
    hits.counts = ints_[1].device();
    hits.candidates = ints_[2].device();
    hits.candidates_stride = stride_;
    hits.candidate_counts = ints_[3].device();
    attention.query = view.tensor();
    attention.output =
        engine_.tensor(PKV_ALLOC_DEVICE, output_->device(), PKV_DTYPE_F32, output_shape);
    attention.hits = &hits;
    const auto start = std::chrono::steady_clock::now();
    CLI_RETURN_IF_ERROR(
        check(pkv_cache_attend(cache_.get(), engine_.stream(), 0, &batch, &attention)));
    CLI_RETURN_IF_ERROR(engine_.sync());
    const auto end = std::chrono::steady_clock::now();
    for (auto& array : ints_) CLI_RETURN_IF_ERROR(array.download());
    CLI_RETURN_IF_ERROR(output_->download());
    pkv_cache_regions regions;
    CLI_RETURN_IF_ERROR(check(pkv_cache_regions_init(&regions, sizeof regions)));
    CLI_RETURN_IF_ERROR(check(pkv_cache_regions_get(cache_.get(), 0, sequence, &regions)));
    Answer answer;
    answer.microseconds = std::chrono::duration<double, std::micro>(end - start).count();
    answer.output = output_->host();
    answer.takes_all_candidates = answer.takes_all_hits = regions.is_encoded == 0;
    for (int64_t head = 0; head < trace_.kv_heads(); ++head) {
      const auto part = [&](size_t values, size_t counts, int64_t stride) {
        const auto from = ints_[values].host().begin() + head * stride;
        return std::vector<int32_t>(from, from + ints_[counts].host()[static_cast<size_t>(head)]);
      };
      answer.hits.push_back(part(0, 1, k_));
      answer.candidates.push_back(part(2, 3, stride_));
    }
    return answer;
  }

  const Engine& engine_;
  const Trace& trace_;
  Setting setting_;
  bool is_fresh_;
  Config config_;
  CacheHandle cache_;
  int32_t sequence_ = 0;
  int64_t held_ = 0;
  int64_t k_ = 0;
  int64_t stride_ = 0;
  double bytes_per_key_ = 0;
  std::vector<DeviceArray<int32_t>> ints_;  // positions, counts, candidates, candidate counts
  std::unique_ptr<DeviceArray<float>> output_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Method>> create_decode(const Engine& engine, const Trace& trace,
                                                      const std::string& profile,
                                                      const OptionValues& options,
                                                      const Setting& setting, bool is_fresh) {
  auto method = std::make_unique<Decode>(engine, trace, setting, is_fresh);
  CLI_RETURN_IF_ERROR(method->open(profile, options));
  return std::unique_ptr<Method>(std::move(method));
}

}  // namespace pkv::cli
