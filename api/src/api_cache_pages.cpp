// The exported functions of pariskv_cache.h about bytes, files, the caller's pages, and merging.
#include <algorithm>
#include <utility>
#include <vector>

#include "api/src/api_cache.h"
#include "api/src/guard.h"
#include "api/src/handles.h"
#include "api/src/struct_size.h"
#include "core/base/status.h"
#include "core/base/text.h"
#include "core/cache/cache.h"
#include "core/pipeline/checks.h"
#include "core/pipeline/merge.h"
#include "pariskv/pariskv_cache.h"

pkv_status pkv_cache_bytes(const pkv_device* device, const pkv_config* config,
                           const pkv_cache_desc* desc, const int64_t* lengths, int32_t count,
                           pkv_dtype query_dtype, pkv_cache_usage* out) {
  return pkv::guard(__func__, [&]() -> absl::Status {
    PKV_REQUIRE(out);
    PKV_REQUIRE(device);
    PKV_REQUIRE(config);
    PKV_REQUIRE(desc);
    PKV_ASSIGN_OR_RETURN(const pkv_cache_desc given,
                         pkv::read_struct(desc, pkv::default_cache_desc(), "pkv_cache_desc"));
    PKV_RETURN_IF_ERROR(pkv::check_range("count", count, 0, INT32_MAX));
    PKV_RETURN_IF_ERROR(pkv::check_pointer("lengths", lengths, count));
    PKV_ASSIGN_OR_RETURN(
        const pkv_cache_usage usage,
        pkv::Cache::bytes(device->device, config->config, given,
                          {lengths, static_cast<std::size_t>(count)}, query_dtype));
    return pkv::write_struct(out, usage, "pkv_cache_usage");
  });
}

pkv_status pkv_merge(pkv_stream* stream, int32_t count, const pkv_tensor* outputs,
                     const float* const* lses, const pkv_tensor* output, float* lse) {
  return pkv::guard(__func__, [&]() -> absl::Status {
    PKV_REQUIRE(stream);
    PKV_REQUIRE(outputs);
    PKV_REQUIRE(lses);
    PKV_REQUIRE(output);
    return pkv::merge(stream->stream, count, outputs, lses, *output, lse);
  });
}

pkv_status pkv_cache_save_sync(pkv_cache* cache, pkv_stream* stream, int32_t sequence,
                               const char* path, uint32_t flags) {
  return pkv::guard(__func__, [&]() -> absl::Status {
    PKV_REQUIRE(cache);
    PKV_REQUIRE(stream);
    PKV_REQUIRE(path);
    if ((flags & ~uint32_t{PKV_SAVE_OVERWRITE}) != 0) {
      return absl::InvalidArgumentError(
          pkv::str_cat("flags=", flags, ", accepted: 0 or 1 (PKV_SAVE_OVERWRITE)"));
    }
    return cache->cache->save_sync(stream->stream, sequence, path,
                                   (flags & PKV_SAVE_OVERWRITE) != 0);
  });
}

pkv_status pkv_cache_load_sync(pkv_cache* cache, pkv_stream* stream, const char* path, int32_t room,
                               int32_t* out_sequences, int32_t* out_count) {
  return pkv::guard(__func__, [&]() -> absl::Status {
    PKV_REQUIRE(out_count);
    *out_count = 0;
    PKV_REQUIRE(cache);
    PKV_REQUIRE(stream);
    PKV_REQUIRE(path);
    PKV_RETURN_IF_ERROR(pkv::check_range("room", room, 0, INT32_MAX));
    PKV_RETURN_IF_ERROR(pkv::check_pointer("out_sequences", out_sequences, room));
    PKV_ASSIGN_OR_RETURN(const std::vector<int32_t> sequences,
                         cache->cache->load_sync(stream->stream, path, room));
    std::copy(sequences.begin(), sequences.end(), out_sequences);
    *out_count = static_cast<int32_t>(sequences.size());
    return absl::OkStatus();
  });
}

pkv_status pkv_cache_pool_init(pkv_cache_pool* pool, size_t struct_size) {
  return pkv::guard(__func__, [&]() -> absl::Status {
    PKV_REQUIRE(pool);
    return pkv::init_struct(pool, struct_size, {}, "pkv_cache_pool");
  });
}

pkv_status pkv_cache_bind_pool(pkv_cache* cache, int32_t layer, const pkv_cache_pool* pool) {
  return pkv::guard(__func__, [&]() -> absl::Status {
    PKV_REQUIRE(cache);
    PKV_REQUIRE(pool);
    PKV_ASSIGN_OR_RETURN(const pkv_cache_pool given,
                         pkv::read_struct(pool, pkv_cache_pool{}, "pkv_cache_pool"));
    return cache->cache->bind_pool(layer, given);
  });
}

pkv_status pkv_cache_blocks_init(pkv_cache_blocks* blocks, size_t struct_size) {
  return pkv::guard(__func__, [&]() -> absl::Status {
    PKV_REQUIRE(blocks);
    return pkv::init_struct(blocks, struct_size, {}, "pkv_cache_blocks");
  });
}

pkv_status pkv_cache_append_pages(pkv_cache* cache, pkv_stream* stream, int32_t layer,
                                  const pkv_cache_blocks* blocks, const pkv_tensor* queries) {
  return pkv::guard(__func__, [&]() -> absl::Status {
    PKV_REQUIRE(cache);
    PKV_REQUIRE(stream);
    PKV_REQUIRE(blocks);
    PKV_ASSIGN_OR_RETURN(const pkv_cache_blocks given,
                         pkv::read_struct(blocks, pkv_cache_blocks{}, "pkv_cache_blocks"));
    return cache->cache->append_pages(stream->stream, layer, given, queries);
  });
}
