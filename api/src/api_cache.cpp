// The exported functions of pariskv_cache.h but its files and the caller's pages.
#include "api/src/api_cache.h"

#include <memory>
#include <utility>

#include "api/src/guard.h"
#include "api/src/handles.h"
#include "api/src/struct_size.h"
#include "core/base/status.h"
#include "core/cache/cache.h"
#include "pariskv/pariskv_cache.h"

namespace pkv {

pkv_cache_desc default_cache_desc() {
  pkv_cache_desc desc{};
  desc.sequences = 1;
  desc.dtype = PKV_DTYPE_BF16;
  desc.capacity = INT32_MAX;
  desc.sink = 128;
  desc.local = 512;
  desc.interval = 512;
  desc.dense_below = 1024;
  desc.page_tokens = 512;
  desc.rows_memory = PKV_ALLOC_HOST;
  desc.fit_positions = 128;
  desc.refits = 1;
  return desc;
}

}  // namespace pkv

namespace {

absl::StatusOr<pkv_cache_batch> read_batch(const pkv_cache_batch* batch) {
  return pkv::read_struct(batch, pkv_cache_batch{}, "pkv_cache_batch");
}

// The caller's hits; written back is the stamp alone.
class Hits {
 public:
  absl::Status read(pkv_cache_hits* given) {
    given_ = given;
    if (given == nullptr) return absl::OkStatus();
    PKV_ASSIGN_OR_RETURN(hits_, pkv::read_struct(given, pkv_cache_hits{}, "pkv_cache_hits"));
    return absl::OkStatus();
  }
  pkv_cache_hits* get() { return given_ == nullptr ? nullptr : &hits_; }
  absl::Status write_stamp() const {
    return given_ == nullptr ? absl::OkStatus()
                             : pkv::write_struct(given_, hits_, "pkv_cache_hits");
  }

 private:
  pkv_cache_hits* given_ = nullptr;
  pkv_cache_hits hits_{};
};

absl::StatusOr<pkv_cache_attention> read_attention(const pkv_cache_attention* attention,
                                                   Hits& hits) {
  PKV_ASSIGN_OR_RETURN(pkv_cache_attention given,
                       pkv::read_struct(attention, pkv_cache_attention{}, "pkv_cache_attention"));
  PKV_RETURN_IF_ERROR(hits.read(given.hits));
  return given;
}

}  // namespace

#define PKV_CACHE_INIT(type, defaults)                               \
  pkv_status type##_init(type* target, size_t struct_size) {         \
    return pkv::guard(__func__, [&]() -> absl::Status {              \
      PKV_REQUIRE(target);                                           \
      return pkv::init_struct(target, struct_size, defaults, #type); \
    });                                                              \
  }
PKV_CACHE_INIT(pkv_cache_layer, (pkv_cache_layer{0, PKV_CACHE_SPARSE, 0}))
PKV_CACHE_INIT(pkv_cache_desc, pkv::default_cache_desc())
PKV_CACHE_INIT(pkv_cache_usage, pkv_cache_usage{})
PKV_CACHE_INIT(pkv_cache_regions, pkv_cache_regions{})
PKV_CACHE_INIT(pkv_cache_batch, pkv_cache_batch{})
PKV_CACHE_INIT(pkv_cache_hits, pkv_cache_hits{})
PKV_CACHE_INIT(pkv_cache_attention, pkv_cache_attention{})
PKV_CACHE_INIT(pkv_cache_stats, pkv_cache_stats{})

pkv_status pkv_cache_create(pkv_device* device, const pkv_config* config,
                            const pkv_cache_desc* desc, pkv_cache** out) {
  return pkv::guard(__func__, [&]() -> absl::Status {
    PKV_REQUIRE(out);
    *out = nullptr;
    PKV_REQUIRE(device);
    PKV_REQUIRE(config);
    PKV_REQUIRE(desc);
    PKV_ASSIGN_OR_RETURN(const pkv_cache_desc given,
                         pkv::read_struct(desc, pkv::default_cache_desc(), "pkv_cache_desc"));
    auto cache = std::make_unique<pkv_cache>();
    PKV_ASSIGN_OR_RETURN(cache->cache, pkv::Cache::create(device->device, config->config, given));
    *out = cache.release();
    return absl::OkStatus();
  });
}

void pkv_cache_destroy(pkv_cache* cache) { pkv::destroy(cache); }

pkv_status pkv_cache_reserve(pkv_cache* cache, pkv_stream* stream, int64_t tokens,
                             int64_t total_tokens, int64_t step_tokens) {
  return pkv::guard(__func__, [&]() -> absl::Status {
    PKV_REQUIRE(cache);
    PKV_REQUIRE(stream);
    return cache->cache->reserve(stream->stream, tokens, total_tokens, step_tokens);
  });
}

pkv_status pkv_cache_add(pkv_cache* cache, int32_t* out_sequence) {
  return pkv::guard(__func__, [&]() -> absl::Status {
    PKV_REQUIRE(out_sequence);
    *out_sequence = 0;
    PKV_REQUIRE(cache);
    PKV_ASSIGN_OR_RETURN(*out_sequence, cache->cache->add());
    return absl::OkStatus();
  });
}

pkv_status pkv_cache_remove(pkv_cache* cache, pkv_stream* stream, int32_t sequence) {
  return pkv::guard(__func__, [&]() -> absl::Status {
    PKV_REQUIRE(cache);
    PKV_REQUIRE(stream);
    return cache->cache->remove(stream->stream, sequence);
  });
}

pkv_status pkv_cache_reset(pkv_cache* cache, pkv_stream* stream, int32_t sequence) {
  return pkv::guard(__func__, [&]() -> absl::Status {
    PKV_REQUIRE(cache);
    PKV_REQUIRE(stream);
    return cache->cache->reset(stream->stream, sequence);
  });
}

pkv_status pkv_cache_truncate(pkv_cache* cache, pkv_stream* stream, int32_t sequence,
                              int64_t tokens) {
  return pkv::guard(__func__, [&]() -> absl::Status {
    PKV_REQUIRE(cache);
    PKV_REQUIRE(stream);
    return cache->cache->truncate(stream->stream, sequence, tokens);
  });
}

pkv_status pkv_cache_fork(pkv_cache* cache, pkv_stream* stream, int32_t source, int64_t tokens,
                          int32_t* out_sequence) {
  return pkv::guard(__func__, [&]() -> absl::Status {
    PKV_REQUIRE(out_sequence);
    *out_sequence = 0;
    PKV_REQUIRE(cache);
    PKV_REQUIRE(stream);
    PKV_ASSIGN_OR_RETURN(*out_sequence, cache->cache->fork(stream->stream, source, tokens));
    return absl::OkStatus();
  });
}

pkv_status pkv_cache_length(const pkv_cache* cache, int32_t layer, int32_t sequence, int64_t* out) {
  return pkv::guard(__func__, [&]() -> absl::Status {
    PKV_REQUIRE(out);
    *out = 0;
    PKV_REQUIRE(cache);
    PKV_ASSIGN_OR_RETURN(*out, cache->cache->length(layer, sequence));
    return absl::OkStatus();
  });
}

pkv_status pkv_cache_regions_get(const pkv_cache* cache, int32_t layer, int32_t sequence,
                                 pkv_cache_regions* out) {
  return pkv::guard(__func__, [&]() -> absl::Status {
    PKV_REQUIRE(out);
    PKV_REQUIRE(cache);
    PKV_ASSIGN_OR_RETURN(const pkv_cache_regions regions, cache->cache->regions(layer, sequence));
    return pkv::write_struct(out, regions, "pkv_cache_regions");
  });
}

pkv_status pkv_cache_append(pkv_cache* cache, pkv_stream* stream, int32_t layer,
                            const pkv_cache_batch* batch, const pkv_tensor* keys,
                            const pkv_tensor* values, const pkv_tensor* queries) {
  return pkv::guard(__func__, [&]() -> absl::Status {
    PKV_REQUIRE(cache);
    PKV_REQUIRE(stream);
    PKV_REQUIRE(batch);
    PKV_REQUIRE(keys);
    PKV_ASSIGN_OR_RETURN(const pkv_cache_batch given, read_batch(batch));
    return cache->cache->append(stream->stream, layer, given, *keys, values, queries);
  });
}

pkv_status pkv_cache_flush(pkv_cache* cache, pkv_stream* stream) {
  return pkv::guard(__func__, [&]() -> absl::Status {
    PKV_REQUIRE(cache);
    PKV_REQUIRE(stream);
    return cache->cache->flush(stream->stream);
  });
}

pkv_status pkv_cache_advance(pkv_cache* cache, pkv_stream* stream, int32_t layer,
                             const pkv_cache_batch* batch) {
  return pkv::guard(__func__, [&]() -> absl::Status {
    PKV_REQUIRE(cache);
    PKV_REQUIRE(stream);
    PKV_REQUIRE(batch);
    PKV_ASSIGN_OR_RETURN(const pkv_cache_batch given, read_batch(batch));
    return cache->cache->advance(stream->stream, layer, given);
  });
}

pkv_status pkv_cache_candidates(const pkv_cache* cache, int64_t tokens, int64_t* out) {
  return pkv::guard(__func__, [&]() -> absl::Status {
    PKV_REQUIRE(out);
    *out = 0;
    PKV_REQUIRE(cache);
    PKV_ASSIGN_OR_RETURN(*out, cache->cache->candidates(tokens));
    return absl::OkStatus();
  });
}

pkv_status pkv_cache_retrieve(pkv_cache* cache, pkv_stream* stream, int32_t layer,
                              const pkv_cache_batch* batch, const pkv_tensor* query,
                              pkv_cache_hits* hits) {
  return pkv::guard(__func__, [&]() -> absl::Status {
    PKV_REQUIRE(cache);
    PKV_REQUIRE(stream);
    PKV_REQUIRE(batch);
    PKV_REQUIRE(query);
    PKV_REQUIRE(hits);
    PKV_ASSIGN_OR_RETURN(const pkv_cache_batch given, read_batch(batch));
    Hits wanted;
    PKV_RETURN_IF_ERROR(wanted.read(hits));
    PKV_RETURN_IF_ERROR(
        cache->cache->retrieve(stream->stream, layer, given, *query, *wanted.get()));
    return wanted.write_stamp();
  });
}

pkv_status pkv_cache_fetch(pkv_cache* cache, pkv_stream* stream, int32_t layer,
                           const pkv_cache_batch* batch, const pkv_cache_hits* hits,
                           const pkv_rows* rows) {
  return pkv::guard(__func__, [&]() -> absl::Status {
    PKV_REQUIRE(cache);
    PKV_REQUIRE(stream);
    PKV_REQUIRE(batch);
    PKV_REQUIRE(hits);
    PKV_REQUIRE(rows);
    PKV_ASSIGN_OR_RETURN(const pkv_cache_batch given, read_batch(batch));
    PKV_ASSIGN_OR_RETURN(const pkv_cache_hits found,
                         pkv::read_struct(hits, pkv_cache_hits{}, "pkv_cache_hits"));
    PKV_ASSIGN_OR_RETURN(const pkv_rows to, pkv::read_struct(rows, pkv_rows{}, "pkv_rows"));
    return cache->cache->fetch(stream->stream, layer, given, found, to);
  });
}

pkv_status pkv_cache_attend(pkv_cache* cache, pkv_stream* stream, int32_t layer,
                            const pkv_cache_batch* batch, const pkv_cache_attention* attention) {
  return pkv::guard(__func__, [&]() -> absl::Status {
    PKV_REQUIRE(cache);
    PKV_REQUIRE(stream);
    PKV_REQUIRE(batch);
    PKV_REQUIRE(attention);
    PKV_ASSIGN_OR_RETURN(const pkv_cache_batch given, read_batch(batch));
    Hits hits;
    PKV_ASSIGN_OR_RETURN(const pkv_cache_attention wanted, read_attention(attention, hits));
    PKV_RETURN_IF_ERROR(cache->cache->attend(stream->stream, layer, given, wanted, hits.get()));
    return hits.write_stamp();
  });
}

pkv_status pkv_cache_decode_step(pkv_cache* cache, pkv_stream* stream, int32_t layer,
                                 const pkv_cache_batch* batch, const pkv_tensor* keys,
                                 const pkv_tensor* values, const pkv_cache_attention* attention) {
  return pkv::guard(__func__, [&]() -> absl::Status {
    PKV_REQUIRE(cache);
    PKV_REQUIRE(stream);
    PKV_REQUIRE(batch);
    PKV_REQUIRE(keys);
    PKV_REQUIRE(attention);
    PKV_ASSIGN_OR_RETURN(const pkv_cache_batch given, read_batch(batch));
    Hits hits;
    PKV_ASSIGN_OR_RETURN(const pkv_cache_attention wanted, read_attention(attention, hits));
    PKV_RETURN_IF_ERROR(
        cache->cache->decode_step(stream->stream, layer, given, *keys, values, wanted, hits.get()));
    return hits.write_stamp();
  });
}

pkv_status pkv_cache_refit(pkv_cache* cache, pkv_stream* stream, int32_t layer, int32_t sequence,
                           const pkv_tensor* queries) {
  return pkv::guard(__func__, [&]() -> absl::Status {
    PKV_REQUIRE(cache);
    PKV_REQUIRE(stream);
    return cache->cache->refit(stream->stream, layer, sequence, queries);
  });
}

pkv_status pkv_cache_import_codec(pkv_cache* cache, int32_t layer, const pkv_codec* codec) {
  return pkv::guard(__func__, [&]() -> absl::Status {
    PKV_REQUIRE(cache);
    PKV_REQUIRE(codec);
    return cache->cache->import_codec(layer, *codec->codec);
  });
}

pkv_status pkv_cache_codec(const pkv_cache* cache, int32_t layer, int32_t sequence,
                           pkv_codec** out) {
  return pkv::guard(__func__, [&]() -> absl::Status {
    PKV_REQUIRE(out);
    *out = nullptr;
    PKV_REQUIRE(cache);
    auto codec = std::make_unique<pkv_codec>();
    PKV_ASSIGN_OR_RETURN(codec->codec, cache->cache->codec(layer, sequence));
    *out = codec.release();
    return absl::OkStatus();
  });
}

pkv_status pkv_cache_export_sync(pkv_cache* cache, pkv_stream* stream, int32_t layer,
                                 int32_t sequence, int32_t kv_head, int64_t begin, int64_t count,
                                 const pkv_records* out) {
  return pkv::guard(__func__, [&]() -> absl::Status {
    PKV_REQUIRE(out);
    PKV_REQUIRE(cache);
    PKV_REQUIRE(stream);
    PKV_ASSIGN_OR_RETURN(const pkv_records records,
                         pkv::read_struct(out, pkv_records{}, "pkv_records"));
    return cache->cache->export_sync(stream->stream, layer, sequence, kv_head, begin, count,
                                     records);
  });
}

pkv_status pkv_cache_rows_sync(pkv_cache* cache, pkv_stream* stream, int32_t layer,
                               int32_t sequence, int64_t begin, int64_t count,
                               const pkv_rows* out) {
  return pkv::guard(__func__, [&]() -> absl::Status {
    PKV_REQUIRE(out);
    PKV_REQUIRE(cache);
    PKV_REQUIRE(stream);
    PKV_ASSIGN_OR_RETURN(const pkv_rows rows, pkv::read_struct(out, pkv_rows{}, "pkv_rows"));
    return cache->cache->rows_sync(stream->stream, layer, sequence, begin, count, rows);
  });
}

pkv_status pkv_cache_sums_sync(pkv_cache* cache, pkv_stream* stream, int32_t layer,
                               int32_t sequence, double* value_sums, int64_t* good_counts,
                               int32_t* occupancy) {
  return pkv::guard(__func__, [&]() -> absl::Status {
    PKV_REQUIRE(cache);
    PKV_REQUIRE(stream);
    return cache->cache->sums_sync(stream->stream, layer, sequence, value_sums, good_counts,
                                   occupancy);
  });
}

pkv_status pkv_cache_stats_sync(pkv_cache* cache, pkv_stream* stream, pkv_cache_stats* out) {
  return pkv::guard(__func__, [&]() -> absl::Status {
    PKV_REQUIRE(out);
    PKV_REQUIRE(cache);
    PKV_REQUIRE(stream);
    PKV_ASSIGN_OR_RETURN(const pkv_cache_stats stats, cache->cache->stats_sync(stream->stream));
    return pkv::write_struct(out, stats, "pkv_cache_stats");
  });
}

pkv_status pkv_cache_usage_get(const pkv_cache* cache, pkv_cache_usage* out) {
  return pkv::guard(__func__, [&]() -> absl::Status {
    PKV_REQUIRE(out);
    PKV_REQUIRE(cache);
    PKV_ASSIGN_OR_RETURN(const pkv_cache_usage usage, cache->cache->usage());
    return pkv::write_struct(out, usage, "pkv_cache_usage");
  });
}

pkv_status pkv_cache_describe(const pkv_cache* cache, const char** out) {
  return pkv::guard(__func__, [&]() -> absl::Status {
    PKV_REQUIRE(out);
    *out = nullptr;
    PKV_REQUIRE(cache);
    *out = cache->texts.keep(cache->cache->describe());
    return absl::OkStatus();
  });
}
