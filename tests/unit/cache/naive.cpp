#include "tests/unit/cache/naive.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace pkv::test {

NaiveRegions simulate(const Shape& shape, int64_t tokens) {
  NaiveRegions r;
  r.next_fit = (shape.dense_below + shape.interval - 1) / shape.interval * shape.interval;
  for (int64_t t = 0; t < tokens; ++t) {
    if (r.sink < shape.sink) {
      ++r.sink;
      continue;
    }
    ++r.tail;
    if (r.tail == shape.local + shape.interval) {  // an interval is full
      r.tail -= shape.interval;
      r.zone += shape.interval;
    }
    if (r.zone < r.next_fit) continue;
    r.fit = r.zone;
    ++r.fits;
    r.next_fit = r.zone;
    const int64_t part = r.zone < 16384 ? 16 : 8;
    while (part * r.next_fit < (part + 1) * r.zone) r.next_fit += shape.interval;
    if (shape.refits == 0) r.next_fit = std::numeric_limits<int64_t>::max();
  }
  return r;
}

Naive::~Naive() {
  for (const auto& [what, codec] : codecs_) pkv_codec_destroy(codec);
}

namespace {
// [heads, n, d] of tokens.
Tensor by_head(const std::vector<uint64_t>& ids, Role role, int32_t heads, int32_t d) {
  const auto n = static_cast<int64_t>(ids.size());
  Tensor tensor({heads, n, d});
  for (int32_t head = 0; head < heads; ++head) {
    for (int64_t i = 0; i < n; ++i) {
      fill_token(ids[static_cast<std::size_t>(i)], role, head, d,
                 tensor.data() + (head * n + i) * d);
    }
  }
  return tensor;
}

std::vector<uint64_t> part(const std::vector<uint64_t>& ids, int64_t begin, int64_t end) {
  return {ids.begin() + begin, ids.begin() + end};
}
}  // namespace

pkv_codec* Naive::codec(const std::vector<uint64_t>& ids, bool with_queries) {
  const Shape& s = world_.shape();
  const NaiveRegions r = simulate(s, static_cast<int64_t>(ids.size()));
  if (r.fit == 0) return nullptr;
  const std::vector<uint64_t> keys = part(ids, s.sink, s.sink + r.fit);
  const int64_t due = s.sink + r.fit + s.local;
  std::vector<uint64_t> sample;
  if (with_queries) sample = part(ids, std::max<int64_t>(0, due - s.fit_positions), due);
  std::vector<uint64_t> what = keys;
  what.push_back(~uint64_t{0});
  what.insert(what.end(), sample.begin(), sample.end());
  pkv_codec*& codec = codecs_[what];
  if (codec != nullptr) return codec;
  const Tensor k = by_head(keys, Role::kKey, s.kv_heads, s.d);
  const Tensor v = by_head(keys, Role::kValue, s.kv_heads, s.d);
  const Tensor q = by_head(sample, Role::kQuery, s.query_heads, s.d);
  const pkv_tensor k_view = k.view();
  const pkv_tensor v_view = v.view();
  const pkv_tensor q_view = q.view();
  REQUIRE_OK(pkv_codec_fit_sync(world_.device(), world_.stream(), world_.config(), &k_view,
                                sample.empty() ? nullptr : &q_view, &v_view, &codec));
  return codec;
}

Answer Naive::attend(const std::vector<uint64_t>& ids, int64_t count, bool with_queries) {
  const Shape& s = world_.shape();
  const auto tokens = static_cast<int64_t>(ids.size());
  const NaiveRegions r = simulate(s, tokens);
  pkv_codec* const fitted = codec(ids, with_queries);
  Answer all;
  if (fitted == nullptr) {  // everything in full
    all = full(ids, count);
    return all;
  }
  pkv_index* index = nullptr;
  REQUIRE_OK(pkv_index_create(world_.device(), fitted, 1, r.zone, &index));
  const std::vector<uint64_t> zone = part(ids, r.sink, r.sink + r.zone);
  const Tensor zone_keys = by_head(zone, Role::kKey, s.kv_heads, s.d);
  const Tensor zone_values = by_head(zone, Role::kValue, s.kv_heads, s.d);
  const pkv_tensor k = zone_keys.view();
  const pkv_tensor v = zone_values.view();
  REQUIRE_OK(pkv_index_append_sync(index, world_.stream(), 0, &k, &v));
  pkv_plan_desc desc{};
  REQUIRE_OK(pkv_plan_desc_init(&desc, sizeof desc));
  desc.batch = 1;
  desc.query_heads = s.query_heads;
  desc.owns_scratch = 1;
  pkv_plan* plan = nullptr;
  REQUIRE_OK(pkv_plan_create(index, world_.config(), &desc, &plan));
  const int64_t shape4[4] = {1, s.kv_heads, r.zone, s.d};
  const auto as4 = [](pkv_tensor tensor, const int64_t* shape) {
    tensor.ndim = 4;
    tensor.shape = shape;
    return tensor;
  };
  for (int64_t t = tokens - count; t < tokens; ++t) {
    const Tensor query = tokens_of(part(ids, t, t + 1), Role::kQuery, s.query_heads, s.d);
    Tensor output({1, s.query_heads, s.d});
    Answer one;
    one.lse.resize(static_cast<std::size_t>(s.query_heads));
    one.positions.resize(static_cast<std::size_t>(s.kv_heads * world_.k()));
    one.counts.resize(static_cast<std::size_t>(s.kv_heads));
    pkv_hits hits{};
    REQUIRE_OK(pkv_hits_init(&hits, sizeof hits));
    hits.positions = one.positions.data();
    hits.counts = one.counts.data();
    pkv_step step{};
    REQUIRE_OK(pkv_step_init(&step, sizeof step));
    step.query = query.view();
    step.output = output.view();
    step.lse = one.lse.data();
    step.hits = &hits;
    if (world_.k() > 0) {
      step.source.struct_size = sizeof step.source;
      step.source.keys = as4(k, shape4);
      step.source.values = as4(v, shape4);
    }
    // Sink and tail up to the token itself.
    std::vector<uint64_t> dense = part(ids, 0, r.sink);
    const std::vector<uint64_t> tail = part(ids, r.sink + r.zone, t + 1);
    dense.insert(dense.end(), tail.begin(), tail.end());
    const Tensor dense_keys = by_head(dense, Role::kKey, s.kv_heads, s.d);
    const Tensor dense_values = by_head(dense, Role::kValue, s.kv_heads, s.d);
    const int64_t dense4[4] = {1, s.kv_heads, static_cast<int64_t>(dense.size()), s.d};
    step.dense_count = 1;
    step.dense[0].rows.struct_size = sizeof step.dense[0].rows;
    step.dense[0].rows.keys = as4(dense_keys.view(), dense4);
    step.dense[0].rows.values = as4(dense_values.view(), dense4);
    REQUIRE_OK(pkv_step_run(plan, world_.stream(), &step));
    REQUIRE_OK(pkv_stream_sync(world_.stream()));
    one.output = output.numbers();
    join(all, one);
  }
  pkv_plan_destroy(plan);
  pkv_index_destroy(index);
  return all;
}

Answer Naive::full(const std::vector<uint64_t>& ids, int64_t count) const {
  const Shape& s = world_.shape();
  const auto tokens = static_cast<int64_t>(ids.size());
  const Tensor keys = tokens_of(ids, Role::kKey, s.kv_heads, s.d);
  const Tensor values = tokens_of(ids, Role::kValue, s.kv_heads, s.d);
  const Tensor queries = tokens_of(ids, Role::kQuery, s.query_heads, s.d);
  const double scale = 1 / std::sqrt(static_cast<double>(s.d));
  Answer all;
  const auto row = [&](const Tensor& tensor, int64_t token, int32_t heads, int32_t head) {
    return tensor.numbers().data() + (token * heads + head) * s.d;
  };
  const auto is_bad = [&](const float* x) {
    float sum = 0;
    for (int32_t j = 0; j < s.d; ++j) sum += x[j] * x[j];
    return !std::isfinite(sum);
  };
  for (int64_t t = tokens - count; t < tokens; ++t) {
    for (int32_t head = 0; head < s.query_heads; ++head) {
      const int32_t kv_head = head / (s.query_heads / s.kv_heads);
      const auto is_left_out = [&](int64_t i) {
        return is_bad(row(keys, i, s.kv_heads, kv_head)) ||
               is_bad(row(values, i, s.kv_heads, kv_head));
      };
      const float* q = row(queries, t, s.query_heads, head);
      std::vector<double> logits;
      for (int64_t i = 0; i <= t; ++i) {
        const float* key = row(keys, i, s.kv_heads, kv_head);
        double dot = 0;
        for (int32_t j = 0; j < s.d; ++j) dot += double{q[j]} * key[j];
        dot *= scale;
        if (s.soft_cap > 0) dot = s.soft_cap * std::tanh(dot / s.soft_cap);
        logits.push_back(is_left_out(i) ? -std::numeric_limits<double>::infinity() : dot);
      }
      double sum = s.sink_logits.empty()
                       ? 0
                       : std::exp(double{s.sink_logits[static_cast<std::size_t>(head)]});
      std::vector<double> out(static_cast<std::size_t>(s.d));
      for (int64_t i = 0; i <= t; ++i) {
        const double weight = std::exp(logits[static_cast<std::size_t>(i)]);
        if (weight == 0) continue;
        sum += weight;
        const float* value = row(values, i, s.kv_heads, kv_head);
        for (int32_t j = 0; j < s.d; ++j) out[static_cast<std::size_t>(j)] += weight * value[j];
      }
      for (const double number : out)
        all.output.push_back(sum > 0 ? static_cast<float>(number / sum) : 0);
      all.lse.push_back(static_cast<float>(std::log(sum)));
    }
    for (int32_t i = 0; i < s.kv_heads * world_.k(); ++i) all.positions.push_back(-1);
    for (int32_t i = 0; i < s.kv_heads; ++i) all.counts.push_back(0);
  }
  return all;
}

void check_close(const Answer& got, const Answer& wanted, double tolerance) {
  CHECK(got.positions == wanted.positions);
  CHECK(got.counts == wanted.counts);
  const auto worst = [](const std::vector<float>& a, const std::vector<float>& b) {
    REQUIRE(a.size() == b.size());
    double difference = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
      const double now = a[i] == b[i] ? 0 : std::abs(double{a[i]} - double{b[i]});
      difference = std::max(difference, std::isfinite(now) ? now : 1e9);
    }
    return difference;
  };
  CHECK(worst(got.output, wanted.output) <= tolerance);
  CHECK(worst(got.lse, wanted.lse) <= tolerance);
}

void join(Answer& all, const Answer& more) {
  const auto add = [](auto& to, const auto& from) {
    to.insert(to.end(), from.begin(), from.end());
  };
  add(all.output, more.output);
  add(all.lse, more.lse);
  add(all.positions, more.positions);
  add(all.counts, more.counts);
}

}  // namespace pkv::test
