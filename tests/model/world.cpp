#include "tests/model/world.h"

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "tests/model/planes.h"

namespace pkv::cache_model {
namespace {

constexpr int32_t kUntouched = -77;
const char* const kSources[] = {"", "own", "k_prefix", "none"};

std::vector<uint64_t> all_tokens(const Parts& parts) {
  std::vector<uint64_t> tokens;
  for (const Part& part : parts) {
    tokens.insert(tokens.end(), part.tokens.begin(), part.tokens.end());
  }
  return tokens;
}

void add_bytes(std::string& all, const void* data, std::size_t bytes) {
  if (bytes > 0) all.append(static_cast<const char*>(data), bytes);
}

std::string open_name(Runtime& runtime, const char* backend) {
  const char* plugin = std::getenv("PKV_CACHE_PLUGIN");
  return plugin == nullptr ? backend : runtime.backend(runtime.load(plugin)).name;
}

}  // namespace

Machine::Machine(const char* backend)
    : device(runtime, open_name(runtime, backend).c_str()), stream(device) {
  const char* streams = std::getenv("PKV_CACHE_STREAMS");
  if (streams != nullptr) check(pkv_device_set(device.get(), "streams", streams));
}

Config config_of(const Shape& shape) {
  Config config(shape.profile.c_str());
  config.set("head_dim", std::to_string(shape.head_dim));
  config.set("v_source", kSources[shape.v_source]);
  if (shape.attends()) config.set("value_dim", std::to_string(shape.value_dim));
  for (const auto& [key, value] : shape.options) config.set(key, value);
  return config;
}

Desc::Desc(const Shape& shape) : c(filled<pkv_cache_desc, pkv_cache_desc_init>()) {
  c.layers = shape.layers;
  c.sequences = shape.sequences;
  c.kv_heads = shape.kv_heads;
  c.query_heads = shape.query_heads;
  c.dtype = shape.dtype;
  c.capacity = shape.capacity;
  c.max_bytes = shape.max_bytes;
  c.sink = shape.sink;
  c.local = shape.local;
  c.interval = shape.interval;
  c.dense_below = shape.dense_below;
  c.page_tokens = shape.page_tokens;
  c.rows_memory = shape.rows_memory;
  c.fit_positions = shape.fit_positions;
  c.refits = shape.refits;
  c.deferred = shape.deferred;
  c.soft_cap = shape.soft_cap;
  if (!shape.sink_logits.empty()) c.sink_logits = shape.sink_logits.data();
  for (const Shape::Policy& policy : shape.policies) {
    policies.push_back(filled<pkv_cache_layer, pkv_cache_layer_init>());
    policies.back().attention = policy.attention;
    policies.back().window = policy.window;
  }
  if (!policies.empty()) c.policies = policies.data();
}

int64_t token_count(const Parts& parts) {
  int64_t n = 0;
  for (const Part& part : parts) n += static_cast<int64_t>(part.tokens.size());
  return n;
}

Batch::Batch(const Parts& parts) : c(filled<pkv_cache_batch, pkv_cache_batch_init>()) {
  for (const Part& part : parts) {
    sequences.push_back(part.sequence);
    counts.push_back(static_cast<int64_t>(part.tokens.size()));
  }
  c.batch = static_cast<int32_t>(parts.size());
  c.sequences = sequences.data();
  c.counts = counts.data();
}

Found::Found(const Shape& shape, int64_t k, int64_t query_tokens, int64_t candidates_stride)
    : n(query_tokens), stride(candidates_stride) {
  const auto rows = static_cast<std::size_t>(n * shape.kv_heads);
  const auto slots = rows * static_cast<std::size_t>(k);
  const auto width = static_cast<std::size_t>(stride);
  positions.assign(slots, kUntouched);
  scores.assign(slots, kUntouched);
  counts.assign(rows, kUntouched);
  candidates.assign(rows * width, kUntouched);
  candidate_counts.assign(rows, kUntouched);
  // Written up to the count alone, so that what lies behind is the same in every Found.
  estimates.assign(static_cast<std::size_t>(n * shape.query_heads) * width, kUntouched);
}

pkv_cache_hits Found::view() {
  pkv_cache_hits hits = filled<pkv_cache_hits, pkv_cache_hits_init>();
  hits.positions = positions.data();
  hits.scores = scores.data();
  hits.counts = counts.data();
  hits.candidates = candidates.data();
  hits.candidates_stride = stride;
  hits.candidate_counts = candidate_counts.data();
  hits.estimates = estimates.data();
  hits.stamp = stamp;
  return hits;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

World::World(Machine& machine, const Shape& shape, std::shared_ptr<KeptRows> kept)
    : machine_(machine),
      shape_(shape),
      content_(shape_, std::move(kept)),
      config_(config_of(shape)),
      k_(std::stoi(config_.get("k"))),
      imported_(static_cast<std::size_t>(shape.layers)) {
  const Desc desc(shape_);
  check(pkv_cache_create(machine_.device.get(), config_.get(), &desc.c, &cache_));
}

Found World::room_for(const Parts& parts, int64_t more_tokens) const {
  int64_t longest = 0;
  for (const Part& part : parts) {
    for (int32_t layer = 0; layer < shape_.layers; ++layer) {
      int64_t tokens = 0;  // a sequence that is not there has none
      if (pkv_cache_length(cache_, layer, part.sequence, &tokens) != PKV_OK) continue;
      longest = std::max(longest, tokens);
    }
  }
  const int64_t tokens = std::min(longest + more_tokens, shape_.capacity);
  return {shape_, k_, token_count(parts), candidates(tokens)};
}

pkv_status World::append(int32_t layer, const Parts& parts, bool with_queries) {
  const std::vector<uint64_t> tokens = all_tokens(parts);
  const Batch batch(parts);
  const Tensor keys = content_.keys(tokens, layer);
  const Tensor values = content_.values(tokens, layer);
  const Tensor queries = content_.queries(tokens, layer);
  const pkv_tensor k = keys.view(), v = values.view(), q = queries.view();
  const pkv_status status =
      pkv_cache_append(cache_, stream(), layer, &batch.c, &k,
                       shape_.has_own_values() ? &v : nullptr, with_queries ? &q : nullptr);
  if (status == PKV_OK) check(pkv_stream_sync(stream()));
  return status;
}

pkv_status World::decode_step(int32_t layer, const Parts& parts, uint32_t flags, Attended& out) {
  const std::vector<uint64_t> tokens = all_tokens(parts);
  const Batch batch(parts);
  const Tensor keys = content_.keys(tokens, layer);
  const Tensor values = content_.values(tokens, layer);
  const Tensor queries = content_.queries(tokens, layer);
  Tensor output(shape_.output_dtype, {token_count(parts), shape_.query_heads, shape_.value_dim});
  output.fill(kUntouched);
  out.lse.assign(tokens.size() * static_cast<std::size_t>(shape_.query_heads), kUntouched);
  out.found = room_for(parts, token_count(parts));
  pkv_cache_hits hits = out.found.view();
  auto attention = filled<pkv_cache_attention, pkv_cache_attention_init>();
  attention.flags = flags;
  attention.query = queries.view();
  attention.output = output.view();
  attention.lse = out.lse.data();
  if (flags == 0 && shape_.is_sparse(layer)) attention.hits = &hits;
  const pkv_tensor k = keys.view(), v = values.view();
  const pkv_status status = pkv_cache_decode_step(
      cache_, stream(), layer, &batch.c, &k, shape_.has_own_values() ? &v : nullptr, &attention);
  if (status == PKV_OK) check(pkv_stream_sync(stream()));
  out.found.stamp = hits.stamp;
  out.output = output.numbers();
  return status;
}

pkv_status World::attend(int32_t layer, const Parts& parts, uint32_t flags, Attended& out) {
  const std::vector<uint64_t> tokens = all_tokens(parts);
  const Batch batch(parts);
  const Tensor queries = content_.queries(tokens, layer);
  Tensor output(shape_.output_dtype, {token_count(parts), shape_.query_heads, shape_.value_dim});
  output.fill(kUntouched);
  out.lse.assign(tokens.size() * static_cast<std::size_t>(shape_.query_heads), kUntouched);
  out.found = room_for(parts, 0);
  pkv_cache_hits hits = out.found.view();
  auto attention = filled<pkv_cache_attention, pkv_cache_attention_init>();
  attention.flags = flags;
  attention.query = queries.view();
  attention.output = output.view();
  attention.lse = out.lse.data();
  if (flags == 0 && shape_.is_sparse(layer)) attention.hits = &hits;
  const pkv_status status = pkv_cache_attend(cache_, stream(), layer, &batch.c, &attention);
  if (status == PKV_OK) check(pkv_stream_sync(stream()));
  out.found.stamp = hits.stamp;
  out.output = output.numbers();
  return status;
}

pkv_status World::retrieve(int32_t layer, const Parts& parts, Found& out, int64_t more_tokens) {
  const Batch batch(parts);
  const Tensor queries = content_.queries(all_tokens(parts), layer);
  const pkv_tensor q = queries.view();
  out = room_for(parts, more_tokens);
  pkv_cache_hits hits = out.view();
  const pkv_status status = pkv_cache_retrieve(cache_, stream(), layer, &batch.c, &q, &hits);
  if (status == PKV_OK) check(pkv_stream_sync(stream()));
  out.stamp = hits.stamp;
  return status;
}

pkv_status World::fetch(int32_t layer, const Parts& parts, Found& found, Tensor& keys,
                        Tensor& values) {
  const Batch batch(parts);
  const int64_t n = token_count(parts);
  keys = Tensor(shape_.dtype, {n, shape_.kv_heads, k_, shape_.head_dim});
  values = Tensor(shape_.dtype, {n, shape_.kv_heads, k_, shape_.value_dim});
  keys.fill(kUntouched);
  values.fill(kUntouched);
  auto rows = filled<pkv_rows, pkv_rows_init>();
  rows.keys = keys.view();
  rows.values = shape_.has_own_values() ? values.view() : no_tensor();
  const pkv_cache_hits hits = found.view();
  const pkv_status status = pkv_cache_fetch(cache_, stream(), layer, &batch.c, &hits, &rows);
  if (status == PKV_OK) check(pkv_stream_sync(stream()));
  return status;
}

pkv_status World::refit(int32_t layer, int32_t sequence, const std::vector<uint64_t>* queries) {
  if (queries == nullptr) return pkv_cache_refit(cache_, stream(), layer, sequence, nullptr);
  const Tensor sample = content_.queries(*queries, layer);
  const pkv_tensor q = sample.view();
  return pkv_cache_refit(cache_, stream(), layer, sequence, &q);
}

pkv_status World::import_codec(int32_t layer, Codec codec) {
  const pkv_status status = pkv_cache_import_codec(cache_, layer, codec.get());
  if (status == PKV_OK) imported_[static_cast<std::size_t>(layer)].emplace(std::move(codec));
  return status;
}

int32_t World::add() {
  int32_t sequence = kUntouched;
  check(pkv_cache_add(cache_, &sequence));
  return sequence;
}
void World::append_all(int32_t sequence, const std::vector<uint64_t>& tokens, bool with_queries) {
  for (int32_t layer = 0; layer < shape_.layers; ++layer) {
    check(append(layer, {{sequence, tokens}}, with_queries));
  }
}
void World::truncate(int32_t sequence, int64_t tokens) {
  check(pkv_cache_truncate(cache_, stream(), sequence, tokens));
}
int32_t World::fork(int32_t source, int64_t tokens) {
  int32_t sequence = kUntouched;
  check(pkv_cache_fork(cache_, stream(), source, tokens, &sequence));
  return sequence;
}
void World::remove(int32_t sequence) { check(pkv_cache_remove(cache_, stream(), sequence)); }
void World::reset(int32_t sequence) { check(pkv_cache_reset(cache_, stream(), sequence)); }
void World::flush() { check(pkv_cache_flush(cache_, stream())); }

int64_t World::length(int32_t layer, int32_t sequence) const {
  int64_t tokens = kUntouched;
  check(pkv_cache_length(cache_, layer, sequence, &tokens));
  return tokens;
}
pkv_cache_regions World::regions(int32_t layer, int32_t sequence) const {
  auto regions = filled<pkv_cache_regions, pkv_cache_regions_init>();
  check(pkv_cache_regions_get(cache_, layer, sequence, &regions));
  return regions;
}
pkv_cache_stats World::stats() const {
  auto stats = filled<pkv_cache_stats, pkv_cache_stats_init>();
  check(pkv_cache_stats_sync(cache_, stream(), &stats));
  return stats;
}
pkv_cache_usage World::usage() const {
  auto usage = filled<pkv_cache_usage, pkv_cache_usage_init>();
  check(pkv_cache_usage_get(cache_, &usage));
  return usage;
}
int64_t World::candidates(int64_t tokens) const {
  int64_t count = kUntouched;
  check(pkv_cache_candidates(cache_, tokens, &count));
  return count;
}

std::string World::records_of(int32_t layer, int32_t sequence, int32_t kv_head, int64_t begin,
                              int64_t count) {
  pkv_codec* handle = nullptr;
  check(pkv_cache_codec(cache_, layer, sequence, &handle));
  const Codec codec(handle);
  const Planes planes(codec.geometry(), begin, count);
  check(pkv_cache_export_sync(cache_, stream(), layer, sequence, kv_head, begin, count,
                              &planes.records()));
  return planes.bytes();
}

std::string World::content_of(int32_t layer, int32_t sequence) {
  const pkv_cache_regions regions = this->regions(layer, sequence);
  std::string all;
  add_bytes(all, &regions.is_encoded, sizeof regions - offsetof(pkv_cache_regions, is_encoded));
  const int64_t n = regions.tokens;
  const Tensor keys(shape_.dtype, {shape_.kv_heads, n, shape_.head_dim});
  const Tensor values(shape_.dtype, {shape_.kv_heads, n, shape_.value_dim});
  auto rows = filled<pkv_rows, pkv_rows_init>();
  rows.keys = keys.host_view();
  rows.values = shape_.has_own_values() ? values.host_view() : no_tensor();
  check(pkv_cache_rows_sync(cache_, stream(), layer, sequence, 0, n, &rows));
  add_bytes(all, keys.bytes().data(), keys.bytes().size());
  add_bytes(all, values.bytes().data(), values.bytes().size());
  if (regions.is_encoded == 0) return all;

  pkv_codec* handle = nullptr;
  check(pkv_cache_codec(cache_, layer, sequence, &handle));
  const Codec codec(handle);
  const pkv_codec_data data = codec.data();
  const std::size_t h = static_cast<std::size_t>(shape_.kv_heads);
  const std::size_t d = static_cast<std::size_t>(shape_.head_dim);
  const std::size_t dv = static_cast<std::size_t>(shape_.value_dim);
  add_bytes(all, data.center, h * d * sizeof(float));
  add_bytes(all, data.balance, h * d * sizeof(float));
  if (data.value_center != nullptr) add_bytes(all, data.value_center, h * dv * sizeof(float));
  const bool is_tier = codec.geometry().vote == PKV_VOTE_TIER;
  std::vector<double> sums(shape_.attends() ? h * dv : 0);
  std::vector<int64_t> good(h);
  std::vector<int32_t> occupancy(is_tier ? h * d / 8 * 256 : 0);
  check(pkv_cache_sums_sync(cache_, stream(), layer, sequence, sums.empty() ? nullptr : sums.data(),
                            good.data(), occupancy.empty() ? nullptr : occupancy.data()));
  add_bytes(all, sums.data(), sums.size() * sizeof(double));
  add_bytes(all, good.data(), good.size() * sizeof(int64_t));
  add_bytes(all, occupancy.data(), occupancy.size() * sizeof(int32_t));
  for (int32_t head = 0; head < shape_.kv_heads; ++head) {
    all += records_of(layer, sequence, head, 0, regions.zone);
  }
  return all;
}

}  // namespace pkv::cache_model
