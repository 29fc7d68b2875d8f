#include "tests/model/oracle.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace pkv::cache_model {
namespace {

constexpr double kUnit = 0x1p-24;  // roundoff of binary32

double scale_of(const World& world) {
  const std::string text = world.shape().option("scale", "auto");
  if (text != "auto") return std::stof(text);
  return static_cast<float>(1.0 / std::sqrt(world.shape().head_dim));
}

// K and V of tokens as one KV head attends to them; V its own, or the first coordinates of K.
struct HeadRows {
  std::vector<float> keys, values;  // [n, d], [n, dv]
  double largest_value = 0;

  HeadRows(const World& world, const NaiveLayer& state, int32_t layer, int32_t kv_head,
           const std::vector<int64_t>& positions) {
    const Shape& shape = world.shape();
    const Content& content = world.content();
    const auto d = static_cast<std::size_t>(shape.head_dim);
    const auto dv = static_cast<std::size_t>(shape.value_dim);
    const auto head = static_cast<std::size_t>(kv_head);
    keys.resize(positions.size() * d);
    values.resize(positions.size() * dv);
    std::vector<std::byte> room;
    for (std::size_t i = 0; i < positions.size(); ++i) {
      const uint64_t token = state.entries[static_cast<std::size_t>(positions[i])].token;
      const Content::Rows rows = content.rows(token, layer, room);
      const std::byte* key = rows.keys + head * content.key_bytes();
      const std::byte* value =
          shape.has_own_values() ? rows.values + head * content.value_bytes() : key;
      read_numbers(shape.dtype, key, d, keys.data() + i * d);
      read_numbers(shape.dtype, value, dv, values.data() + i * dv);
    }
    for (const float v : values) largest_value = std::max<double>(largest_value, std::fabs(v));
  }
};

// q * k, and the sum of its terms' magnitudes. d is a multiple of 8.
struct Product {
  double sum = 0, magnitude = 0;
  Product(const float* q, const float* k, std::size_t d) {
    double sums[8] = {}, magnitudes[8] = {};
    for (std::size_t j = 0; j < d; j += 8) {
      for (std::size_t i = 0; i < 8; ++i) {
        const double term = static_cast<double>(q[j + i]) * static_cast<double>(k[j + i]);
        sums[i] += term;
        magnitudes[i] += std::fabs(term);
      }
    }
    for (std::size_t i = 0; i < 8; ++i) {
      sum += sums[i];
      magnitude += magnitudes[i];
    }
  }
};

Index index_of(const World& world, const Codec& codec, int64_t tokens) {
  return {world.machine().device, codec, 1, tokens};
}

}  // namespace

Exact attend_exactly(const World& world, const NaiveLayer& state, int32_t layer, uint64_t query,
                     const std::vector<int64_t>& positions,
                     const std::vector<std::vector<int64_t>>& rows) {
  const Shape& shape = world.shape();
  const auto dv = static_cast<std::size_t>(shape.value_dim);
  const auto heads = static_cast<std::size_t>(shape.query_heads);
  const double scale = scale_of(world);
  Exact out{std::vector<double>(heads * dv), std::vector<double>(heads), {}, {}};
  for (int32_t h = 0; h < shape.kv_heads; ++h) {
    std::vector<int64_t> seen = positions;
    if (!rows.empty()) {
      const auto& fetched = rows[static_cast<std::size_t>(h)];
      seen.insert(seen.end(), fetched.begin(), fetched.end());
    }
    const HeadRows of(world, state, layer, h, seen);
    for (int32_t g = 0; g < shape.group(); ++g) {
      const auto head = static_cast<std::size_t>(h * shape.group() + g);
      const std::vector<float> q = world.content().query(query, layer, static_cast<int32_t>(head));
      std::vector<double> logits(seen.size());
      double largest_terms = 0;
      for (std::size_t i = 0; i < seen.size(); ++i) {
        const Product product(q.data(), of.keys.data() + i * q.size(), q.size());
        logits[i] = scale * product.sum;
        if (shape.soft_cap > 0) logits[i] = shape.soft_cap * std::tanh(logits[i] / shape.soft_cap);
        largest_terms = std::max(largest_terms, product.magnitude);
      }
      double top = -std::numeric_limits<double>::infinity();
      if (!shape.sink_logits.empty()) top = shape.sink_logits[head];
      for (const double logit : logits) top = std::max(top, logit);
      if (std::isinf(top)) {  // nothing to attend to
        out.lse[head] = top;
        out.lse_tolerance.push_back(0);
        out.output_tolerance.push_back(0);
        continue;
      }
      double mass = shape.sink_logits.empty() ? 0 : std::exp(shape.sink_logits[head] - top);
      for (std::size_t i = 0; i < logits.size(); ++i) {
        const double weight = std::exp(logits[i] - top);
        mass += weight;
        const float* value = of.values.data() + i * dv;
        double* sum = out.output.data() + head * dv;
        for (std::size_t j = 0; j < dv; ++j) sum[j] += weight * static_cast<double>(value[j]);
      }
      for (std::size_t j = 0; j < dv; ++j) out.output[head * dv + j] /= mass;
      out.lse[head] = top + std::log(mass);
      // docs/numerics.md, 3: attention. A soft cap rounds its tanh once more, of magnitude cap.
      const double eps = (shape.head_dim + 2) * kUnit * scale * largest_terms +
                         4 * kUnit * static_cast<double>(shape.soft_cap);
      const double sum =
          (static_cast<double>(std::min<std::size_t>(seen.size(), 1024)) + 8) * kUnit;
      out.output_tolerance.push_back(2 * (eps + sum) * of.largest_value);
      out.lse_tolerance.push_back(eps + sum + kUnit * std::fabs(out.lse[head]));
    }
  }
  return out;
}

Codec codec_of(const World& world, const Naive& naive, int32_t layer, int32_t sequence) {
  if (const Codec* imported = world.imported(layer)) {
    return Codec::from(world.machine().device, world.config(), imported->data());
  }
  const Shape& shape = world.shape();
  const NaiveLayer& state = naive.layer(layer, sequence);
  const NaiveFit& fit = state.fits.back();
  const std::vector<uint64_t> tokens = state.slice(shape.sink, fit.zone);
  const std::vector<uint64_t> sample = naive.fit_queries(layer, sequence);
  const bool has_queries = fit.is_requested ? fit.has_queries : !sample.empty();
  const Tensor keys = world.content().head_keys(tokens, layer);
  const Tensor values = world.content().head_values(tokens, layer);
  const Tensor queries = world.content().head_queries(sample, layer);
  const pkv_tensor k = keys.view(), q = queries.view();
  pkv_tensor v = values.view();
  std::vector<int64_t> prefix, strides;
  if (shape.v_source == PKV_V_SOURCE_K_PREFIX) {
    prefix = {shape.kv_heads, fit.zone, shape.value_dim};
    strides = {fit.zone * shape.head_dim, shape.head_dim, 1};
    v = k;
    v.shape = prefix.data();
    v.strides = strides.data();
  }
  return Codec::fit_sync(world.machine().device, world.machine().stream, world.config(), k,
                         has_queries ? &q : nullptr, shape.attends() ? &v : nullptr);
}

ZoneIndex::ZoneIndex(const World& world, const Naive& naive, int32_t layer, int32_t sequence)
    : world_(world),
      state_(naive.layer(layer, sequence)),
      layer_(layer),
      codec_(codec_of(world, naive, layer, sequence)),
      zone_(state_.slice(world.shape().sink, state_.zone)),
      keys_(world.content().head_keys(zone_, layer)),
      values_(world.content().head_values(zone_, layer)),
      index_(index_of(world, codec_, state_.zone)) {
  const pkv_tensor k = keys_.view(), v = values_.view();
  index_.append_sync(world.machine().stream, 0, k, world.shape().has_own_values() ? &v : nullptr);
  pkv_plan_desc desc = plan_desc();
  desc.query_heads = world.shape().query_heads;
  desc.owns_scratch = 1;
  plan_.emplace(index_, world.config(), desc);
}

Planes ZoneIndex::records(int32_t kv_head) const {
  Planes planes(codec_.geometry(), 0, state_.zone);
  check(pkv_index_export_sync(index_.get(), world_.stream(), 0, kv_head, 0, state_.zone,
                              &planes.records()));
  return planes;
}

Attended ZoneIndex::step(uint64_t query, int64_t tokens) const {
  const Shape& shape = world_.shape();
  Attended out;
  out.found = Found(shape, world_.k(), 1, plan_->candidates());
  pkv_hits hits = api::hits();
  hits.positions = out.found.positions.data();
  hits.scores = out.found.scores.data();
  hits.counts = out.found.counts.data();
  hits.candidates = out.found.candidates.data();
  hits.candidate_counts = out.found.candidate_counts.data();
  hits.estimates = out.found.estimates.data();
  const int64_t samples = std::stoi(world_.config().get("tail_samples"));
  std::vector<float> rest(static_cast<std::size_t>(shape.query_heads));
  std::vector<float> sample_estimates(static_cast<std::size_t>(shape.query_heads * samples));
  hits.rest_lse = rest.data();
  hits.sample_estimates = sample_estimates.data();
  const Tensor q = world_.content().queries(std::vector<uint64_t>{query}, layer_);
  const pkv_tensor query_view = q.view();
  if (shape.soft_cap > 0 || !shape.sink_logits.empty() || !shape.attends()) {
    plan_->retrieve(world_.machine().stream, query_view, nullptr, hits);
    world_.machine().stream.sync();
    return out;
  }
  // [1, h, t, width]: the zone, and sink and tail as parts attended in full.
  const auto with_batch = [](const Tensor& tensor, std::vector<int64_t>& extents) {
    extents.assign(1, 1);
    extents.insert(extents.end(), tensor.shape().begin(), tensor.shape().end());
    pkv_tensor view = tensor.view();
    view.ndim = 4;
    view.shape = extents.data();
    return view;
  };
  const auto rows_of = [&](const Tensor& k, const Tensor& v, std::vector<int64_t>& k_extents,
                           std::vector<int64_t>& v_extents) {
    pkv_rows rows = api::rows();
    rows.keys = with_batch(k, k_extents);
    rows.values = shape.has_own_values() ? with_batch(v, v_extents) : no_tensor();
    return rows;
  };
  std::vector<uint64_t> dense = state_.slice(0, shape.sink);
  const int64_t zone_end = shape.sink + state_.zone;
  const std::vector<uint64_t> tail = state_.slice(zone_end, tokens - zone_end);
  dense.insert(dense.end(), tail.begin(), tail.end());
  const Tensor dense_keys = world_.content().head_keys(dense, layer_);
  const Tensor dense_values = world_.content().head_values(dense, layer_);
  Tensor output(shape.output_dtype, {1, shape.query_heads, shape.value_dim});
  out.lse.resize(static_cast<std::size_t>(shape.query_heads));
  std::vector<int64_t> extents[4];
  pkv_step step = api::step();
  step.query = query_view;
  step.dense_count = 1;
  step.dense[0].rows = rows_of(dense_keys, dense_values, extents[0], extents[1]);
  step.source = rows_of(keys_, values_, extents[2], extents[3]);
  if (world_.k() == 0) step.source = api::rows();
  step.hits = &hits;
  step.output = output.view();
  step.lse = out.lse.data();
  plan_->step(world_.machine().stream, step);
  world_.machine().stream.sync();
  out.output = output.numbers();
  return out;
}

}  // namespace pkv::cache_model
