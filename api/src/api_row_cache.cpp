// Exported functions of section "Row cache".
#include <memory>

#include "api/src/guard.h"
#include "api/src/handles.h"
#include "api/src/struct_size.h"
#include "core/base/status.h"
#include "core/index/row_cache.h"
#include "pariskv/pariskv.h"

pkv_status pkv_row_cache_create(const pkv_index* index, pkv_stream* stream, pkv_dtype dtype,
                                int32_t rows, pkv_row_cache** out) {
  return pkv::guard(__func__, [&]() -> absl::Status {
    PKV_REQUIRE(out);
    *out = nullptr;
    PKV_REQUIRE(index);
    PKV_REQUIRE(stream);
    auto cache = std::make_unique<pkv_row_cache>();
    PKV_ASSIGN_OR_RETURN(cache->cache,
                         pkv::RowCache::create(index->index, stream->stream, dtype, rows));
    *out = cache.release();
    return absl::OkStatus();
  });
}

void pkv_row_cache_destroy(pkv_row_cache* cache) { pkv::destroy(cache); }

pkv_status pkv_row_cache_drop(pkv_row_cache* cache, pkv_stream* stream, int32_t sequence) {
  return pkv::guard(__func__, [&]() -> absl::Status {
    PKV_REQUIRE(cache);
    PKV_REQUIRE(stream);
    return cache->cache->drop(stream->stream, sequence);
  });
}

pkv_status pkv_row_cache_stats_init(pkv_row_cache_stats* stats, size_t struct_size) {
  return pkv::guard(__func__, [&]() -> absl::Status {
    PKV_REQUIRE(stats);
    return pkv::init_struct(stats, struct_size, {}, "pkv_row_cache_stats");
  });
}

pkv_status pkv_row_cache_stats_sync(const pkv_row_cache* cache, pkv_stream* stream,
                                    pkv_row_cache_stats* out) {
  return pkv::guard(__func__, [&]() -> absl::Status {
    PKV_REQUIRE(out);
    PKV_REQUIRE(cache);
    PKV_REQUIRE(stream);
    PKV_ASSIGN_OR_RETURN(const pkv_row_cache_stats stats, cache->cache->stats_sync(stream->stream));
    return pkv::write_struct(out, stats, "pkv_row_cache_stats");
  });
}
