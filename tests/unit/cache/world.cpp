#include "tests/unit/cache/world.h"

#include <algorithm>
#include <limits>

namespace pkv::test {
namespace {

uint64_t mixed(uint64_t x) {  // splitmix64
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

float normal(uint64_t seed) {  // the sum of four uniforms, scaled to variance 1
  float sum = 0;
  for (int i = 0; i < 4; ++i) {
    sum += static_cast<float>((seed >> (16 * i)) & 0xffff) / 65536.0F - 0.5F;
  }
  return sum * 1.7320508F;
}

}  // namespace

void fill_token(uint64_t id, Role role, int32_t head, int32_t d, float* out) {
  const bool is_key = role == Role::kKey && head == 0;
  const bool is_nan = is_key && (id & kNanKey) != 0;
  const bool is_infinite = role == Role::kValue && head == 1 && (id & kInfiniteValue) != 0;
  const bool is_huge = is_key && (id & kHugeKey) != 0;
  id &= ~(kNanKey | kInfiniteValue | kHugeKey);
  const Role drawn = role == Role::kDeviation ? Role::kKey : role;
  const uint64_t seed = mixed(id * 8 + static_cast<uint64_t>(drawn)) + static_cast<uint64_t>(head);
  for (int32_t j = 0; j < d; ++j) {
    out[j] = normal(mixed(mixed(seed) + static_cast<uint64_t>(j)));
    if (role == Role::kKey) out[j] += 2 * normal(mixed(static_cast<uint64_t>(1000 * head + j)));
  }
  if (is_nan) out[d / 2] = std::numeric_limits<float>::quiet_NaN();
  if (is_infinite) out[d - 1] = -std::numeric_limits<float>::infinity();
  if (is_huge) std::fill_n(out, d, 1e25F);
}

Tensor tokens_of(const std::vector<uint64_t>& ids, Role role, int32_t heads, int32_t d) {
  Tensor tensor({static_cast<int64_t>(ids.size()), heads, d});
  float* out = tensor.data();
  for (const uint64_t id : ids) {
    for (int32_t head = 0; head < heads; ++head, out += d) fill_token(id, role, head, d, out);
  }
  return tensor;
}

std::vector<uint64_t> ids_from(uint64_t first, int64_t count) {
  std::vector<uint64_t> ids(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = first + i;
  return ids;
}

World::World(const Shape& shape) : shape_(shape) {
  REQUIRE_OK(pkv_runtime_create(nullptr, &runtime_));
  REQUIRE_OK(pkv_device_open(runtime_, shape.backend.c_str(), 0, &device_));
  REQUIRE_OK(pkv_stream_create(device_, &stream_));
  REQUIRE_OK(pkv_config_create("default", &config_));
  REQUIRE_OK(pkv_config_set(config_, "head_dim", std::to_string(shape.d).c_str()));
  for (const auto& [name, value] : shape.options) {
    REQUIRE_OK(pkv_config_set(config_, name.c_str(), value.c_str()));
  }
  REQUIRE_OK(pkv_cache_desc_init(&desc_, sizeof desc_));
  desc_.layers = shape.layers;
  desc_.sequences = shape.sequences;
  desc_.kv_heads = shape.kv_heads;
  desc_.query_heads = shape.query_heads;
  desc_.dtype = PKV_DTYPE_F32;
  desc_.capacity = shape.capacity;
  desc_.max_bytes = shape.max_bytes;
  desc_.sink = shape.sink;
  desc_.local = shape.local;
  desc_.interval = shape.interval;
  desc_.dense_below = shape.dense_below;
  desc_.page_tokens = shape.page_tokens;
  desc_.fit_positions = shape.fit_positions;
  desc_.deferred = shape.deferred;
  desc_.refits = shape.refits;
  desc_.soft_cap = shape.soft_cap;
  if (!shape.sink_logits.empty()) desc_.sink_logits = shape_.sink_logits.data();
  if (!shape.policies.empty()) desc_.policies = shape_.policies.data();
  REQUIRE_OK(pkv_cache_create(device_, config_, &desc_, &cache_));
}

World::~World() {
  pkv_cache_destroy(cache_);
  pkv_config_destroy(config_);
  pkv_stream_destroy(stream_);
  pkv_device_close(device_);
  pkv_runtime_destroy(runtime_);
}

int32_t World::k() const {
  const char* text = nullptr;
  REQUIRE_OK(pkv_config_get(config_, "k", &text));
  return std::stoi(text);
}

int32_t World::add() {
  int32_t sequence = -1;
  REQUIRE_OK(pkv_cache_add(cache_, &sequence));
  return sequence;
}

namespace {
struct Flat {
  std::vector<uint64_t> ids;
  std::vector<int64_t> counts;
  pkv_cache_batch batch{};
  Flat(const std::vector<int32_t>& sequences, const std::vector<std::vector<uint64_t>>& of_each) {
    for (const auto& part : of_each) {
      ids.insert(ids.end(), part.begin(), part.end());
      counts.push_back(static_cast<int64_t>(part.size()));
    }
    REQUIRE_OK(pkv_cache_batch_init(&batch, sizeof batch));
    batch.batch = static_cast<int32_t>(sequences.size());
    batch.sequences = sequences.data();
    batch.counts = counts.data();
  }
};
}  // namespace

pkv_status World::try_append(int32_t layer, const std::vector<int32_t>& sequences,
                             const std::vector<std::vector<uint64_t>>& ids, bool with_queries) {
  const Flat flat(sequences, ids);
  const Tensor keys = tokens_of(flat.ids, Role::kKey, shape_.kv_heads, shape_.d);
  const Tensor values = tokens_of(flat.ids, Role::kValue, shape_.kv_heads, shape_.d);
  const Tensor queries = tokens_of(flat.ids, Role::kQuery, shape_.query_heads, shape_.d);
  const pkv_tensor k = keys.view();
  const pkv_tensor v = values.view();
  const pkv_tensor q = queries.view();
  return pkv_cache_append(cache_, stream_, layer, &flat.batch, &k, &v, with_queries ? &q : nullptr);
}

void World::append(int32_t sequence, const std::vector<uint64_t>& ids, bool with_queries,
                   int32_t layer) {
  REQUIRE_OK(try_append(layer, {sequence}, {ids}, with_queries));
}

Answer World::call(int32_t layer, const std::vector<int32_t>& sequences,
                   const std::vector<std::vector<uint64_t>>& ids, uint32_t flags, bool appends) {
  const Flat flat(sequences, ids);
  const auto n = static_cast<int64_t>(flat.ids.size());
  const Tensor keys = tokens_of(flat.ids, Role::kKey, shape_.kv_heads, shape_.d);
  const Tensor values = tokens_of(flat.ids, Role::kValue, shape_.kv_heads, shape_.d);
  const Tensor queries = tokens_of(flat.ids, Role::kQuery, shape_.query_heads, shape_.d);
  Tensor output({n, shape_.query_heads, shape_.d}, -77);
  Answer answer;
  answer.lse.assign(static_cast<std::size_t>(n * shape_.query_heads), -77);
  answer.positions.assign(static_cast<std::size_t>(n * shape_.kv_heads * k()), -77);
  answer.counts.assign(static_cast<std::size_t>(n * shape_.kv_heads), -77);
  pkv_cache_hits hits{};
  REQUIRE_OK(pkv_cache_hits_init(&hits, sizeof hits));
  hits.positions = answer.positions.data();
  hits.counts = answer.counts.data();
  pkv_cache_attention attention{};
  REQUIRE_OK(pkv_cache_attention_init(&attention, sizeof attention));
  attention.flags = flags;
  attention.query = queries.view();
  attention.output = output.view();
  attention.lse = answer.lse.data();
  const bool is_sparse =
      shape_.policies.empty() ||
      shape_.policies[static_cast<std::size_t>(layer)].attention == PKV_CACHE_SPARSE;
  attention.hits = flags == 0 && is_sparse ? &hits : nullptr;
  const pkv_tensor key_view = keys.view();
  const pkv_tensor value_view = values.view();
  REQUIRE_OK(appends ? pkv_cache_decode_step(cache_, stream_, layer, &flat.batch, &key_view,
                                             &value_view, &attention)
                     : pkv_cache_attend(cache_, stream_, layer, &flat.batch, &attention));
  REQUIRE_OK(pkv_stream_sync(stream_));
  answer.output = output.numbers();
  return answer;
}

Answer World::attend(int32_t sequence, const std::vector<uint64_t>& ids, uint32_t flags,
                     int32_t layer) {
  return call(layer, {sequence}, {ids}, flags, false);
}

Answer World::decode(const std::vector<int32_t>& sequences,
                     const std::vector<std::vector<uint64_t>>& ids, int32_t layer) {
  return call(layer, sequences, ids, 0, true);
}

int64_t World::length(int32_t sequence, int32_t layer) const {
  int64_t tokens = -1;
  REQUIRE_OK(pkv_cache_length(cache_, layer, sequence, &tokens));
  return tokens;
}

pkv_cache_regions World::regions(int32_t sequence, int32_t layer) const {
  pkv_cache_regions regions{};
  REQUIRE_OK(pkv_cache_regions_init(&regions, sizeof regions));
  REQUIRE_OK(pkv_cache_regions_get(cache_, layer, sequence, &regions));
  return regions;
}

void World::truncate(int32_t sequence, int64_t tokens) {
  REQUIRE_OK(pkv_cache_truncate(cache_, stream_, sequence, tokens));
}

int32_t World::fork(int32_t sequence, int64_t tokens) {
  int32_t child = -1;
  REQUIRE_OK(pkv_cache_fork(cache_, stream_, sequence, tokens, &child));
  return child;
}

pkv_cache_usage World::usage() const {
  pkv_cache_usage usage{};
  REQUIRE_OK(pkv_cache_usage_init(&usage, sizeof usage));
  REQUIRE_OK(pkv_cache_usage_get(cache_, &usage));
  return usage;
}

pkv_cache_stats World::stats() const {
  pkv_cache_stats stats{};
  REQUIRE_OK(pkv_cache_stats_init(&stats, sizeof stats));
  REQUIRE_OK(pkv_cache_stats_sync(cache_, stream_, &stats));
  return stats;
}

std::vector<uint8_t> World::records(int32_t sequence, int32_t layer) const {
  const pkv_cache_regions r = regions(sequence, layer);
  std::vector<uint8_t> bytes;
  if (r.is_encoded == 0) return bytes;
  for (int32_t head = 0; head < shape_.kv_heads; ++head) {
    // More than any plane needs.
    const auto room = static_cast<std::size_t>(r.zone * shape_.d);
    std::vector<std::vector<uint8_t>> planes(8, std::vector<uint8_t>(room));
    pkv_records records{};
    records.struct_size = sizeof records;
    records.signs = planes[0].data();
    records.vote_factors = reinterpret_cast<uint16_t*>(planes[1].data());
    records.codes = planes[2].data();
    records.factors = reinterpret_cast<uint16_t*>(planes[3].data());
    records.value_signs = planes[4].data();
    records.value_codes = planes[5].data();
    records.value_factors = reinterpret_cast<uint16_t*>(planes[6].data());
    records.value_norms = reinterpret_cast<uint16_t*>(planes[7].data());
    REQUIRE_OK(pkv_cache_export_sync(cache_, stream_, layer, sequence, head, 0, r.zone, &records));
    for (const auto& plane : planes) bytes.insert(bytes.end(), plane.begin(), plane.end());
  }
  return bytes;
}

std::vector<uint8_t> World::state(int32_t sequence, int32_t layer) const {
  std::vector<uint8_t> bytes = records(sequence, layer);
  const auto add = [&](const void* data, std::size_t count) {
    const auto* from = static_cast<const uint8_t*>(data);
    bytes.insert(bytes.end(), from, from + count);
  };
  const pkv_cache_regions r = regions(sequence, layer);
  add(&r, sizeof r);
  const int64_t h = shape_.kv_heads;
  const int64_t d = shape_.d;
  const bool is_sparse =
      shape_.policies.empty() ||
      shape_.policies[static_cast<std::size_t>(layer)].attention == PKV_CACHE_SPARSE;
  if (is_sparse) {
    std::vector<double> sums(static_cast<std::size_t>(h * d));
    std::vector<int64_t> good(static_cast<std::size_t>(h));
    REQUIRE_OK(
        pkv_cache_sums_sync(cache_, stream_, layer, sequence, sums.data(), good.data(), nullptr));
    add(sums.data(), sums.size() * sizeof(double));
    add(good.data(), good.size() * sizeof(int64_t));
  }
  Tensor keys({h, r.tokens, d});
  Tensor values({h, r.tokens, d});
  pkv_rows rows{};
  REQUIRE_OK(pkv_rows_init(&rows, sizeof rows));
  rows.keys = keys.view();
  rows.values = values.view();
  REQUIRE_OK(pkv_cache_rows_sync(cache_, stream_, layer, sequence, 0, r.tokens, &rows));
  add(keys.numbers().data(), keys.numbers().size() * sizeof(float));
  add(values.numbers().data(), values.numbers().size() * sizeof(float));
  if (r.is_encoded != 0) {
    pkv_codec* codec = nullptr;
    REQUIRE_OK(pkv_cache_codec(cache_, layer, sequence, &codec));
    pkv_codec_data data{};
    REQUIRE_OK(pkv_codec_data_init(&data, sizeof data));
    REQUIRE_OK(pkv_codec_export(codec, &data));
    add(data.center, static_cast<std::size_t>(h * d) * sizeof(float));
    add(data.balance, static_cast<std::size_t>(h * d) * sizeof(float));
    pkv_codec_destroy(codec);
  }
  return bytes;
}

}  // namespace pkv::test
