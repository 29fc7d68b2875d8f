// The part of the sequence machine that is about caches.
#include <algorithm>
#include <cstdlib>

#include "tests/fuzz/api_machine.h"

namespace pkv::fuzz {
namespace {

constexpr std::size_t kMostCaches = 2;

// A batch of up to three sequences, with counts that fit `most` tokens or are wrong.
struct Batch {
  Batch(Bytes& bytes, int64_t most) {
    pkv_cache_batch_init(&c, sizeof c);
    const uint32_t entries = bytes.one_in(16) ? 0 : 1 + bytes.below(2);
    for (uint32_t i = 0; i < entries; ++i) {
      sequences.push_back(static_cast<int32_t>(odd_number(bytes, i)));
      counts.push_back(odd_number(bytes, 1 + bytes.below(static_cast<uint32_t>(most))));
    }
    const bool has_counts = !bytes.one_in(4);
    c.batch = static_cast<int32_t>(entries);
    c.sequences = bytes.one_in(64) ? nullptr : sequences.data();
    c.counts = has_counts ? counts.data() : nullptr;
    if (bytes.one_in(64)) c.struct_size = 2;
    for (const int64_t count : counts) {
      n += has_counts ? std::clamp<int64_t>(count, 0, 64) : 1;
    }
  }
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;
  pkv_cache_batch c{};
  std::vector<int32_t> sequences;
  std::vector<int64_t> counts;
  int64_t n = 0;
};

// Room for what a step finds.
struct Found {
  Found(const CacheSlot& slot, int64_t n, int64_t stride)
      : positions(static_cast<std::size_t>(n * slot.desc.kv_heads * slot.k)),
        counts(static_cast<std::size_t>(n * slot.desc.kv_heads)),
        candidates(static_cast<std::size_t>(n * slot.desc.kv_heads * stride)),
        candidate_counts(counts.size()),
        scores(positions.size()),
        estimates(static_cast<std::size_t>(n * slot.desc.query_heads * stride)) {
    pkv_cache_hits_init(&c, sizeof c);
    c.positions = positions.data();
    c.counts = counts.data();
    c.candidates = candidates.data();
    c.candidates_stride = stride;
    c.candidate_counts = candidate_counts.data();
    c.scores = scores.data();
    c.estimates = estimates.data();
  }
  pkv_cache_hits c{};
  std::vector<int32_t> positions, counts, candidates, candidate_counts;
  std::vector<float> scores, estimates;
};

int32_t layer_of(Bytes& bytes) { return static_cast<int32_t>(odd_number(bytes, bytes.below(2))); }
int32_t sequence_of(Bytes& bytes) {
  return static_cast<int32_t>(odd_number(bytes, bytes.below(3)));
}

}  // namespace

// Lengths, regions and tokens: what a refused call must leave.
std::string Machine::state_of(const CacheSlot& slot) {
  std::string all;
  for (int32_t layer = 0; layer < slot.desc.layers; ++layer) {
    for (int32_t sequence = 0; sequence < slot.desc.sequences; ++sequence) {
      pkv_cache_regions regions{};
      pkv_cache_regions_init(&regions, sizeof regions);
      const pkv_status status = pkv_cache_regions_get(slot.cache, layer, sequence, &regions);
      all += std::to_string(status);
      if (status != PKV_OK) continue;
      for (const int64_t number : {regions.tokens, regions.zone, regions.fits, regions.next_fit}) {
        all += "," + std::to_string(number);
      }
    }
  }
  return all;
}

template <class Call>
void Machine::change(CacheSlot* slot, Call call) {
  if (slot == nullptr) {
    require(!is_done(call(nullptr)), "a cache is needed");
    return;
  }
  const std::string before = state_of(*slot);
  if (!is_done(call(slot->cache))) {
    require(state_of(*slot) == before, "a refused call leaves the cache as it was");
  }
}

void Machine::make_cache(Bytes& bytes) {
  if (caches_.size() >= kMostCaches) return;
  pkv_config** picked = pick(bytes, configs_);
  const pkv_config* config = picked == nullptr ? base_ : *picked;
  const auto option = [config](const char* name) {
    const char* text = "";
    pkv_config_get(config, name, &text);
    return std::string(text);
  };
  CacheSlot slot;
  pkv_cache_desc& desc = slot.desc;
  pkv_cache_desc_init(&desc, sizeof desc);
  desc.layers = static_cast<int32_t>(odd_number(bytes, 2));
  desc.sequences = static_cast<int32_t>(odd_number(bytes, 3));
  desc.kv_heads = static_cast<int32_t>(odd_number(bytes, 2));
  desc.query_heads = static_cast<int32_t>(odd_number(bytes, 4));
  desc.dtype = bytes.one_in(16) ? static_cast<pkv_dtype>(bytes.below(9)) : PKV_DTYPE_F32;
  desc.capacity = odd_number(bytes, 200);
  desc.max_bytes = bytes.one_in(4) ? odd_number(bytes, 300000) : 0;
  desc.sink = odd_number(bytes, 4);
  desc.local = odd_number(bytes, 8);
  desc.interval = odd_number(bytes, 8);
  desc.dense_below = odd_number(bytes, 16);
  desc.page_tokens = odd_number(bytes, 64);
  desc.rows_memory = static_cast<int32_t>(odd_number(bytes, 1 + bytes.below(2)));
  desc.fit_positions = static_cast<int32_t>(odd_number(bytes, 8));
  desc.refits = bytes.one_in(4) ? 0 : 1;
  desc.deferred = bytes.one_in(4) ? 1 : 0;
  desc.soft_cap = bytes.one_in(8) ? -1.0F : 0.0F;
  std::vector<pkv_cache_layer> policies(2);
  for (pkv_cache_layer& policy : policies) {
    pkv_cache_layer_init(&policy, sizeof policy);
    policy.attention = static_cast<int32_t>(odd_number(bytes, 1 + bytes.below(3)));
    policy.window = policy.attention == PKV_CACHE_WINDOW ? odd_number(bytes, 9) : 0;
  }
  if (desc.layers == 2 && bytes.one_in(2)) desc.policies = policies.data();
  // The header bounds how much memory is taken; a test takes less.
  if (desc.layers > 8 || desc.sequences > 64 || desc.kv_heads > 64 || desc.query_heads > 256) {
    pkv_cache_usage usage{};
    pkv_cache_usage_init(&usage, sizeof usage);
    is_done(pkv_cache_bytes(device(bytes), config, &desc, nullptr, 0, PKV_DTYPE_F32, &usage));
    return;
  }
  const pkv_status status = pkv_cache_create(device(bytes), config, &desc, &slot.cache);
  require((status == PKV_OK) == (slot.cache != nullptr), "a handle comes with success");
  if (!is_done(status)) return;
  desc.policies = nullptr;
  slot.head_dim = std::strtoll(option("head_dim").c_str(), nullptr, 10);
  const std::string value_dim = option("value_dim"), source = option("v_source");
  slot.value_dim = std::strtoll(value_dim.c_str(), nullptr, 10);
  if (slot.value_dim == 0) slot.value_dim = slot.head_dim;
  slot.has_values = source == "own";
  slot.k = std::strtoll(option("k").c_str(), nullptr, 10);
  if (slot.k > 4096) return pkv_cache_destroy(slot.cache);
  caches_.push_back(slot);
  int32_t sequence = -1;
  for (uint32_t i = bytes.below(3); i > 0; --i) is_done(pkv_cache_add(slot.cache, &sequence));
}

void Machine::use_sequences(Bytes& bytes) {
  CacheSlot* slot = pick(bytes, caches_);
  const int32_t sequence = sequence_of(bytes);
  const int64_t tokens = odd_number(bytes, bytes.below(60));
  pkv_stream* in = stream(bytes);
  int32_t made = -7;
  const uint32_t what = bytes.below(8);
  const bool whole = bytes.one_in(2);
  const int32_t layer = layer_of(bytes);
  change(slot, [&](pkv_cache* cache) {
    switch (what) {
      case 0:
      case 1: return pkv_cache_add(cache, &made);
      case 2: return pkv_cache_remove(cache, in, sequence);
      case 3: return pkv_cache_reset(cache, in, sequence);
      case 4: return pkv_cache_truncate(cache, in, sequence, tokens);
      case 5: return pkv_cache_fork(cache, in, sequence, whole ? -1 : tokens, &made);
      case 6: return pkv_cache_flush(cache, in);
      default: return pkv_cache_refit(cache, in, layer, sequence, nullptr);
    }
  });
}

void Machine::append_tokens(Bytes& bytes) {
  CacheSlot* slot = pick(bytes, caches_);
  if (slot == nullptr) {
    return change(nullptr, [&](pkv_cache* cache) { return pkv_cache_flush(cache, nullptr); });
  }
  const Batch batch(bytes, 30);
  const int64_t n = batch.n, h = slot->desc.kv_heads, hq = slot->desc.query_heads;
  const int32_t layer = layer_of(bytes);
  pkv_stream* in = stream(bytes);
  View keys = view_of(bytes, input_, {n, h, slot->head_dim}, slot->desc.dtype);
  View values = view_of(bytes, input_, {n, h, slot->value_dim}, slot->desc.dtype);
  View queries = view_of(bytes, input_, {n, hq, slot->head_dim}, PKV_DTYPE_F32);
  const bool has_values = slot->has_values != bytes.one_in(32);
  const pkv_tensor* v = has_values ? values.get() : nullptr;
  const bool has_queries = !bytes.one_in(4);
  // Batches of wrong handles may make a sound view longer than the memory; other views are refused.
  const int64_t width = std::max(slot->head_dim, slot->value_dim);
  if (n * hq * width * 4 > input_.size()) return;
  if (bytes.one_in(2)) {
    return change(slot, [&](pkv_cache* cache) {
      return pkv_cache_append(cache, in, layer, &batch.c, keys.get(), v,
                              has_queries ? queries.get() : nullptr);
    });
  }
  Memory output(n * hq * slot->value_dim * 8 + 64);
  View out = view_of(bytes, output, {n, hq, slot->value_dim}, PKV_DTYPE_F32);
  std::vector<float> lse(static_cast<std::size_t>(n * hq));
  int64_t stride = 0;
  pkv_cache_candidates(slot->cache, std::min<int64_t>(slot->desc.capacity, 4096), &stride);
  stride = std::min<int64_t>(stride, 4096);
  Found found(*slot, n, stride);
  pkv_cache_attention attention{};
  pkv_cache_attention_init(&attention, sizeof attention);
  attention.flags = bytes.one_in(4) ? uint32_t{PKV_CACHE_EXACT} : bytes.one_in(32) ? 8U : 0U;
  attention.query = *queries.get();
  attention.output = *out.get();
  attention.lse = bytes.one_in(2) ? nullptr : lse.data();
  attention.hits = bytes.one_in(2) ? nullptr : &found.c;
  const bool appends = !bytes.one_in(3);
  change(slot, [&](pkv_cache* cache) {
    return appends ? pkv_cache_decode_step(cache, in, layer, &batch.c, keys.get(), v, &attention)
                   : pkv_cache_attend(cache, in, layer, &batch.c, &attention);
  });
}

void Machine::use_hits(Bytes& bytes) {
  CacheSlot* slot = pick(bytes, caches_);
  if (slot == nullptr) return;
  const Batch batch(bytes, 3);
  const int64_t n = batch.n, h = slot->desc.kv_heads, hq = slot->desc.query_heads;
  const int32_t layer = layer_of(bytes);
  pkv_stream* in = stream(bytes);
  if (n * hq * slot->head_dim * 4 > input_.size()) return;
  View query = view_of(bytes, input_, {n, hq, slot->head_dim}, PKV_DTYPE_F32);
  int64_t stride = 0;
  is_done(pkv_cache_candidates(slot->cache, odd_number(bytes, 200), &stride));
  pkv_cache_candidates(slot->cache, std::min<int64_t>(slot->desc.capacity, 4096), &stride);
  Found found(*slot, n, std::min<int64_t>(stride, 4096));
  const bool is_found =
      is_done(pkv_cache_retrieve(slot->cache, in, layer, &batch.c, query.get(), &found.c));
  // Positions that no retrieve gave are refused; those of ours may be anything.
  if (!found.positions.empty() && bytes.one_in(4)) {
    found.positions[bytes.below(static_cast<uint32_t>(found.positions.size()))] =
        static_cast<int32_t>(odd_number(bytes, 3));
  }
  if (bytes.one_in(8)) found.c.stamp ^= 1;
  Memory key_rows(n * h * slot->k * slot->head_dim * 8 + 64);
  Memory value_rows(n * h * slot->k * slot->value_dim * 8 + 64);
  View keys = view_of(bytes, key_rows, {n, h, slot->k, slot->head_dim}, slot->desc.dtype);
  View values = view_of(bytes, value_rows, {n, h, slot->k, slot->value_dim}, slot->desc.dtype);
  pkv_rows rows{};
  pkv_rows_init(&rows, sizeof rows);
  rows.keys = *keys.get();
  if (slot->has_values) rows.values = *values.get();
  if (is_found) is_done(pkv_cache_fetch(slot->cache, in, layer, &batch.c, &found.c, &rows));
}

void Machine::look_inside(Bytes& bytes) {
  CacheSlot* slot = pick(bytes, caches_);
  if (slot == nullptr) return;
  const int32_t layer = layer_of(bytes), sequence = sequence_of(bytes);
  const int64_t begin = odd_number(bytes, bytes.below(20)),
                count = odd_number(bytes, bytes.below(9));
  const int64_t room = count < 0 || count > 64 ? 1 : count;
  pkv_stream* in = stream(bytes);
  const int64_t h = slot->desc.kv_heads;
  switch (bytes.below(6)) {
    case 0: {
      Memory k(h * room * slot->head_dim * 8 + 64), v(h * room * slot->value_dim * 8 + 64);
      View keys = view_of(bytes, k, {h, room, slot->head_dim}, slot->desc.dtype);
      View values = view_of(bytes, v, {h, room, slot->value_dim}, slot->desc.dtype);
      pkv_rows rows{};
      pkv_rows_init(&rows, sizeof rows);
      rows.keys = *keys.get();
      if (slot->has_values) rows.values = *values.get();
      is_done(pkv_cache_rows_sync(slot->cache, in, layer, sequence, begin, count, &rows));
      break;
    }
    case 1: {
      std::vector<double> sums(static_cast<std::size_t>(h * slot->value_dim));
      std::vector<int64_t> good(static_cast<std::size_t>(h));
      std::vector<int32_t> occupancy(static_cast<std::size_t>(h * slot->head_dim / 8 * 256));
      const bool has_occupancy = bytes.one_in(2);
      is_done(pkv_cache_sums_sync(slot->cache, in, layer, sequence,
                                  bytes.one_in(4) ? nullptr : sums.data(), good.data(),
                                  has_occupancy ? occupancy.data() : nullptr));
      break;
    }
    case 2: {
      pkv_codec* codec = nullptr;
      if (is_done(pkv_cache_codec(slot->cache, layer, sequence, &codec))) {
        is_done(pkv_cache_import_codec(slot->cache, layer, codec));
        pkv_codec_destroy(codec);
      }
      break;
    }
    case 3: {
      pkv_codec** codec = pick(bytes, codecs_);
      change(slot, [&](pkv_cache* cache) {
        return pkv_cache_import_codec(cache, layer, codec == nullptr ? nullptr : *codec);
      });
      break;
    }
    case 4: {
      pkv_cache_stats stats{};
      pkv_cache_stats_init(&stats, sizeof stats);
      if (is_done(pkv_cache_stats_sync(slot->cache, in, &stats))) {
        require(stats.tokens >= 0 && stats.sequences <= slot->desc.sequences,
                "a cache holds no more than its slots");
      }
      pkv_cache_usage usage{};
      pkv_cache_usage_init(&usage, sizeof usage);
      require(is_done(pkv_cache_usage_get(slot->cache, &usage)), "a cache tells its usage");
      require(usage.total == usage.row_pages + usage.record_pages + usage.tables + usage.occupancy +
                                 usage.codecs + usage.samples + usage.scratch,
              "the total is the sum");
      const char* text = nullptr;
      is_done(pkv_cache_describe(slot->cache, &text));
      break;
    }
    default: {
      const int64_t tokens = odd_number(bytes, 100), total = odd_number(bytes, 200);
      if (tokens <= 4096 && total <= 65536) {
        is_done(pkv_cache_reserve(slot->cache, in, tokens, total, odd_number(bytes, 2) % 4096));
      }
      const Batch batch(bytes, 3);
      change(slot, [&](pkv_cache* cache) { return pkv_cache_advance(cache, in, layer, &batch.c); });
    }
  }
}

void Machine::use_files(Bytes& bytes) {
  CacheSlot* slot = pick(bytes, caches_);
  const std::string path = folder_.file(bytes.one_in(16) ? "no/such" : "cache.pkv");
  pkv_stream* in = stream(bytes);
  const auto sequence = static_cast<int32_t>(odd_number(bytes, -1));
  const uint32_t flags = bytes.one_in(8) ? bytes.byte() : uint32_t{PKV_SAVE_OVERWRITE};
  if (bytes.one_in(2)) {
    return change(slot, [&](pkv_cache* cache) {
      return pkv_cache_save_sync(cache, in, sequence, path.c_str(), flags);
    });
  }
  int32_t sequences[3] = {};
  int32_t count = -1;
  const auto room = static_cast<int32_t>(bytes.below(4));
  change(slot, [&](pkv_cache* cache) {
    return pkv_cache_load_sync(cache, in, path.c_str(), room, sequences, &count);
  });
}

void Machine::use_pages(Bytes& bytes) {
  CacheSlot* slot = pick(bytes, caches_);
  if (slot == nullptr) return;
  constexpr int64_t kPages = 8, kPageTokens = 4;
  const int64_t h = slot->desc.kv_heads, d = slot->head_dim, dv = slot->value_dim;
  const int32_t layer = layer_of(bytes);
  if (!slot->is_pooled && pools_.size() < 8) {
    pools_.emplace_back(kPages * kPageTokens * h * d * 4 + 64);
    View keys = view_of(bytes, pools_.back(), {kPages, h, kPageTokens, d}, slot->desc.dtype);
    pools_.emplace_back(kPages * kPageTokens * h * dv * 4 + 64);
    View values = view_of(bytes, pools_.back(), {kPages, h, kPageTokens, dv}, slot->desc.dtype);
    pkv_cache_pool pool{};
    pkv_cache_pool_init(&pool, sizeof pool);
    pool.layout = static_cast<int32_t>(odd_number(bytes, PKV_LAYOUT_HND));
    pool.keys = *keys.get();
    if (slot->has_values) pool.values = *values.get();
    slot->is_pooled = is_done(pkv_cache_bind_pool(slot->cache, layer, &pool));
    return;
  }
  const int32_t sequence = sequence_of(bytes);
  const int64_t pages = bytes.below(6);
  std::vector<int32_t> indices;
  for (int64_t i = 0; i < pages; ++i) indices.push_back(static_cast<int32_t>(odd_number(bytes, i)));
  const int64_t indptr[] = {odd_number(bytes, 0), pages};
  const auto last_page = static_cast<int32_t>(odd_number(bytes, 1 + bytes.below(4)));
  pkv_cache_blocks blocks{};
  pkv_cache_blocks_init(&blocks, sizeof blocks);
  blocks.batch = 1;
  blocks.sequences = &sequence;
  blocks.indptr = indptr;
  blocks.indices = indices.data();
  blocks.last_page = &last_page;
  change(slot, [&](pkv_cache* cache) {
    return pkv_cache_append_pages(cache, stream(bytes), layer, &blocks, nullptr);
  });
}

}  // namespace pkv::fuzz
