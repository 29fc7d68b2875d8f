// What a backend must do for the KV cache of an engine (pariskv_cache.h): rows and tables that grow
// while tokens are appended, in pages. Attention of every step is held against double precision;
// sparse layers find all of their zone, so that it is full attention there too.
#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>

#include "fmt/core.h"
#include "pariskv/pariskv_cache.h"
#include "tests/conformance/bench.h"
#include "tests/conformance/cases.h"
#include "tests/conformance/failure.h"
#include "tests/conformance/half.h"
#include "tests/conformance/session.h"
#include "tests/conformance/tolerance.h"

namespace pkv::conformance {
namespace {

constexpr int32_t kLayers = 2;
constexpr int64_t kInterval = 8;
constexpr int64_t kSteps = 10;  // more than an interval: zones grow
constexpr int64_t kWindow = 33;

// Fields that a table leaves out keep these values.
struct CacheShape {
  int32_t attention = PKV_CACHE_SPARSE;
  int32_t d = 64;
  int32_t dv = 24;
  int32_t h = 2;
  int32_t G = 2;
  int32_t b = 2;
  int64_t n = 150;  // tokens of the longest prompt
  pkv_dtype dtype = PKV_DTYPE_F32;
  int32_t rows = PKV_ALLOC_HOST;

  int32_t hq() const { return h * G; }
};

const char* attention_name(int32_t attention) {
  return attention == PKV_CACHE_SPARSE  ? "sparse"
         : attention == PKV_CACHE_DENSE ? "dense"
                                        : "window";
}

void require_or_skip(const char* function, pkv_status status) {
  if (status == PKV_UNIMPLEMENTED) throw Skip(error_text(function, status));
  require(function, status);
}

// All tokens of a sequence in one layer, those that steps append included: [h, t, width].
struct Tokens {
  Dense keys;
  Dense values;
  Dense queries;  // [t, hq, d]
  std::vector<float> key_numbers;
  std::vector<float> value_numbers;
};

Dense random_dense(Random& random, pkv_dtype dtype, const Shape& shape) {
  std::vector<float> numbers(static_cast<size_t>(count_of(shape)));
  for (float& number : numbers) number = random.normal();
  return make_dense(dtype, shape, numbers);
}

class CacheCase {
 public:
  CacheCase(const Place& place, const CacheShape& shape, uint8_t fill, Random random)
      : place_(place), shape_(shape), fill_(fill) {
    for (int32_t s = 0; s < shape.b; ++s) {
      lengths_.push_back(std::max<int64_t>(s == 0 ? shape.n : shape.n / 2, 1));
      for (int32_t layer = 0; layer < kLayers; ++layer) {
        const int64_t t = lengths_.back() + kSteps;
        tokens_.push_back({random_dense(random, shape.dtype, {t, shape.h, shape.d}),
                           random_dense(random, shape.dtype, {t, shape.h, shape.dv}),
                           random_dense(random, PKV_DTYPE_F32, {t, shape.hq(), shape.d}),
                           {},
                           {}});
        tokens_.back().key_numbers = tokens_.back().keys.floats();
        tokens_.back().value_numbers = tokens_.back().values.floats();
      }
    }
    create();
  }

  // Bits of all outputs.
  std::vector<float> run() {
    for (int32_t layer = 0; layer < kLayers; ++layer) append(layer);
    std::vector<float> all;
    for (int64_t step = 0; step < kSteps; ++step) {
      for (int32_t layer = 0; layer < kLayers; ++layer) {
        const Dense output = decode(layer, step);
        judge(layer, step, output);
        const std::vector<float> numbers = output.floats();
        all.insert(all.end(), numbers.begin(), numbers.end());
      }
    }
    return all;
  }

 private:
  void create() {
    pkv_config* config = nullptr;
    require("pkv_config_create", pkv_config_create("default", &config));
    const std::unique_ptr<pkv_config, void (*)(pkv_config*)> owner(config, pkv_config_destroy);
    for (const auto& [name, value] : {std::pair("head_dim", fmt::format("{}", shape_.d)),
                                      {"value_dim", fmt::format("{}", shape_.dv)},
                                      {"k", "300"},
                                      {"tail", "mean"}}) {
      require("pkv_config_set", pkv_config_set(config, name, value.c_str()));
    }
    pkv_cache_layer policy = {};
    require("pkv_cache_layer_init", pkv_cache_layer_init(&policy, sizeof policy));
    policy.attention = shape_.attention;
    policy.window = shape_.attention == PKV_CACHE_WINDOW ? kWindow : 0;
    const std::vector<pkv_cache_layer> policies(kLayers, policy);
    pkv_cache_desc desc = {};
    require("pkv_cache_desc_init", pkv_cache_desc_init(&desc, sizeof desc));
    desc.layers = kLayers;
    desc.sequences = shape_.b;
    desc.kv_heads = shape_.h;
    desc.query_heads = shape_.hq();
    desc.dtype = shape_.dtype;
    desc.capacity = 4096;
    desc.sink = 4;
    desc.local = 16;
    desc.interval = kInterval;
    desc.dense_below = 64;
    desc.page_tokens = 64;
    desc.rows_memory = shape_.rows;
    desc.policies = policies.data();
    pkv_cache* cache = nullptr;
    require_or_skip("pkv_cache_create", pkv_cache_create(place_.device(), config, &desc, &cache));
    cache_.reset(cache);
    for (int32_t s = 0; s < shape_.b; ++s) {
      int32_t slot = -1;
      require("pkv_cache_add", pkv_cache_add(cache, &slot));
      slots_.push_back(slot);
    }
  }

  // Tokens [begin, begin + count) of all sequences, one after another.
  Tensor gathered(int32_t layer, Dense Tokens::*part, const std::vector<int64_t>& begins,
                  const std::vector<int64_t>& counts) const {
    Dense all = {(tokens_[0].*part).dtype, (tokens_[0].*part).shape, {}};
    all.shape[0] = 0;
    for (int32_t s = 0; s < shape_.b; ++s) {
      const Dense& source = of(s, layer).*part;
      const auto i = static_cast<size_t>(s);
      std::vector<int32_t> entries;
      for (int64_t t = 0; t < counts[i]; ++t)
        entries.push_back(static_cast<int32_t>(begins[i] + t));
      const Dense taken = take(source, entries);
      all.bytes.insert(all.bytes.end(), taken.bytes.begin(), taken.bytes.end());
      all.shape[0] += counts[i];
    }
    return lay_out(all, Layout::kDense);
  }

  pkv_cache_batch batch_of(const std::vector<int64_t>& counts) const {
    pkv_cache_batch batch = {};
    require("pkv_cache_batch_init", pkv_cache_batch_init(&batch, sizeof batch));
    batch.batch = shape_.b;
    batch.sequences = slots_.data();
    batch.counts = counts.data();
    return batch;
  }

  pkv_status passed(pkv_status status) const {
    const pkv_status waited = pkv_stream_sync(place_.stream());
    return status == PKV_OK ? waited : status;
  }

  void append(int32_t layer) const {
    Session session(place_, fill_);
    const std::vector<int64_t> begins(lengths_.size(), 0);
    const Tensor keys = gathered(layer, &Tokens::keys, begins, lengths_);
    const Tensor values = gathered(layer, &Tokens::values, begins, lengths_);
    const pkv_tensor k = session.in("keys", keys);
    const pkv_tensor v = session.in("values", values);
    const pkv_cache_batch batch = batch_of(lengths_);
    session.finish("pkv_cache_append", passed(pkv_cache_append(cache_.get(), place_.stream(), layer,
                                                               &batch, &k, &v, nullptr)));
  }

  // One token of each sequence: [b, hq, dv].
  Dense decode(int32_t layer, int64_t step) const {
    Session session(place_, fill_);
    std::vector<int64_t> begins;
    for (const int64_t length : lengths_) begins.push_back(length + step);
    const std::vector<int64_t> ones(lengths_.size(), 1);
    const Tensor keys = gathered(layer, &Tokens::keys, begins, ones);
    const Tensor values = gathered(layer, &Tokens::values, begins, ones);
    const Tensor queries = gathered(layer, &Tokens::queries, begins, ones);
    const Tensor output =
        empty_tensor(PKV_DTYPE_F32, {shape_.b, shape_.hq(), shape_.dv}, Layout::kDense, fill_);
    const pkv_tensor k = session.in("keys", keys);
    const pkv_tensor v = session.in("values", values);
    pkv_cache_attention attention = {};
    require("pkv_cache_attention_init", pkv_cache_attention_init(&attention, sizeof attention));
    attention.query = session.in("queries", queries);
    attention.output = session.out("output", output);
    attention.lse = session.out<float>("lse", int64_t{shape_.b} * shape_.hq());
    const pkv_cache_batch batch = batch_of(ones);
    session.finish("pkv_cache_decode_step",
                   passed(pkv_cache_decode_step(cache_.get(), place_.stream(), layer, &batch, &k,
                                                &v, &attention)));
    const Dense numbers = session.read("output", attention.output, output);
    check_merge(numbers, session.read(attention.lse, int64_t{shape_.b} * shape_.hq()));
    return numbers;
  }

  // Joined with a part that holds nothing, the bits stay (pkv_merge).
  void check_merge(const Dense& numbers, const std::vector<float>& lse) const {
    Session session(place_, fill_);
    const Tensor part = lay_out(numbers, Layout::kDense);
    const Tensor target = empty_tensor(PKV_DTYPE_F32, numbers.shape, Layout::kDense, fill_);
    const pkv_tensor parts[] = {session.in("part", part), session.in("empty part", part)};
    const std::vector<float> nothing(lse.size(), -std::numeric_limits<float>::infinity());
    const float* lses[] = {session.in("lse", lse), session.in("lse of nothing", nothing)};
    const pkv_tensor output = session.out("merged", target);
    const pkv_status status = passed(pkv_merge(place_.stream(), 2, parts, lses, &output, nullptr));
    if (status == PKV_UNIMPLEMENTED) return;
    session.finish("pkv_merge", status);
    expect_bits("merged with nothing", numbers, session.read("merged", output, target));
  }

  void judge(int32_t layer, int64_t step, const Dense& output) const {
    for (int32_t s = 0; s < shape_.b; ++s) {
      const int64_t tokens = lengths_[static_cast<size_t>(s)] + step + 1;
      const int64_t first =
          shape_.attention == PKV_CACHE_WINDOW ? std::max<int64_t>(0, tokens - kWindow) : 0;
      for (int32_t head = 0; head < shape_.hq(); ++head) {
        judge_head(
            of(s, layer), head, first, tokens, output,
            (int64_t{s} * shape_.hq() + head) * shape_.dv,
            fmt::format("step {}, layer {}, sequence {}, query head {}", step, layer, s, head));
      }
    }
  }

  // The last of `tokens` tokens attends to [first, tokens). docs/algorithm.md, section 8.
  void judge_head(const Tokens& all, int32_t head, int64_t first, int64_t tokens,
                  const Dense& output, int64_t at, const std::string& where) const {
    const int32_t d = shape_.d;
    const int32_t dv = shape_.dv;
    const int32_t kv = head / shape_.G;
    const double scale = 1.0 / std::sqrt(static_cast<double>(d));
    std::vector<double> logits;
    double eps = 0.0;
    for (int64_t t = first; t < tokens; ++t) {
      double dot = 0.0;
      double size = 0.0;
      for (int32_t j = 0; j < d; ++j) {
        const double q = all.queries.at(((tokens - 1) * shape_.hq() + head) * d + j);
        const double term = q * all.key_numbers[static_cast<size_t>((t * shape_.h + kv) * d + j)];
        dot += term;
        size += std::fabs(term);
      }
      logits.push_back(dot * scale);
      eps = std::max(eps, logit(d, scale, size));
    }
    const double most = *std::max_element(logits.begin(), logits.end());
    double mass = 0.0;
    for (double& l : logits) mass += l = std::exp(l - most);
    for (int32_t j = 0; j < dv; ++j) {
      double sum = 0.0;
      double largest = 0.0;
      for (size_t i = 0; i < logits.size(); ++i) {
        const int64_t t = first + static_cast<int64_t>(i);
        const double value = all.value_numbers[static_cast<size_t>((t * shape_.h + kv) * dv + j)];
        sum += logits[i] * value;
        largest = std::max(largest, std::fabs(value));
      }
      const double wanted = sum / mass;
      const double got = output.at(at + j);
      const auto m = static_cast<int64_t>(logits.size());
      const double bound = attend_output(eps, m, largest, wanted, PKV_DTYPE_F32);
      if (std::fabs(got - wanted) <= bound) continue;
      throw Failure(
          fmt::format("{}, [{}]: expected {} +- {}, got {}", where, j, wanted, bound, got));
    }
  }

  const Tokens& of(int32_t sequence, int32_t layer) const {
    return tokens_[static_cast<size_t>(sequence * kLayers + layer)];
  }

  const Place& place_;
  CacheShape shape_;
  uint8_t fill_;
  std::vector<int64_t> lengths_;  // of the prompts
  std::vector<Tokens> tokens_;    // [b, layers]
  std::vector<int32_t> slots_;
  std::unique_ptr<pkv_cache, void (*)(pkv_cache*)> cache_{nullptr, pkv_cache_destroy};
};

void add(Cases& cases, const CacheShape& shape) {
  std::string text = fmt::format("d{}_dv{}_h{}_g{}_n{}_{}", shape.d, shape.dv, shape.h, shape.G,
                                 shape.n, dtype_name(shape.dtype));
  if (shape.rows == PKV_ALLOC_DEVICE) text += "_device";
  const std::string name =
      fmt::format("cache/{}/{}/b{}", attention_name(shape.attention), text, shape.b);
  cases.push_back({name, Verdict::kTolerance, [shape, name](const Bench& bench) {
                     const auto run = [&](const Place& place, uint8_t fill) {
                       return CacheCase(place, shape, fill, bench.random(name)).run();
                     };
                     fill_fresh_memory(kFills[0]);
                     const std::vector<float> first = run(bench.subject(), kFills[0]);
                     fill_fresh_memory(kFills[1]);
                     expect_bits("a second run", first, run(bench.subject(), kFills[1]));
                   }});
}

}  // namespace

void add_cache_cases(Cases& cases) {
  add(cases, {});
  add(cases, {.rows = PKV_ALLOC_DEVICE});
  add(cases, {.d = 128, .dv = 128, .h = 1, .G = 4, .n = 90, .dtype = PKV_DTYPE_BF16});
  add(cases, {.h = 1, .G = 7, .b = 3, .n = 200, .dtype = PKV_DTYPE_F16});
  add(cases, {.n = 1});
  add(cases, {.attention = PKV_CACHE_DENSE});
  add(cases, {.attention = PKV_CACHE_WINDOW, .rows = PKV_ALLOC_DEVICE});
}

}  // namespace pkv::conformance
