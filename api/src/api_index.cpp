// Exported functions of section "Index over keys".
#include <memory>
#include <string>
#include <utility>

#include "api/src/guard.h"
#include "api/src/handles.h"
#include "api/src/struct_size.h"
#include "core/base/status.h"
#include "core/base/text.h"
#include "core/codec/codec.h"
#include "core/index/index.h"
#include "core/index/index_sizes.h"
#include "pariskv/pariskv.h"

pkv_status pkv_index_bytes(const pkv_device* device, const pkv_codec* codec, int32_t sequences,
                           int64_t capacity, int64_t* out) {
  return pkv::guard(__func__, [&]() -> absl::Status {
    PKV_REQUIRE(out);
    *out = 0;
    PKV_REQUIRE(device);
    PKV_REQUIRE(codec);
    PKV_ASSIGN_OR_RETURN(
        const pkv::IndexSizes sizes,
        pkv::IndexSizes::create(*device->device, *codec->codec, sequences, capacity));
    *out = sizes.total_bytes;
    return absl::OkStatus();
  });
}

pkv_status pkv_index_create(pkv_device* device, const pkv_codec* codec, int32_t sequences,
                            int64_t capacity, pkv_index** out) {
  return pkv::guard(__func__, [&]() -> absl::Status {
    PKV_REQUIRE(out);
    *out = nullptr;
    PKV_REQUIRE(device);
    PKV_REQUIRE(codec);
    auto index = std::make_unique<pkv_index>();
    PKV_ASSIGN_OR_RETURN(index->index,
                         pkv::Index::create(device->device, codec->codec, sequences, capacity));
    *out = index.release();
    return absl::OkStatus();
  });
}

void pkv_index_destroy(pkv_index* index) { pkv::destroy(index); }

pkv_status pkv_index_append(pkv_index* index, pkv_stream* stream, int32_t sequence,
                            const pkv_tensor* keys, const pkv_tensor* values) {
  return pkv::guard(__func__, [&]() -> absl::Status {
    PKV_REQUIRE(index);
    PKV_REQUIRE(stream);
    PKV_REQUIRE(keys);
    return index->index->append(stream->stream, sequence, *keys, values,
                                pkv::Index::Mode::kEnqueue);
  });
}

pkv_status pkv_index_append_sync(pkv_index* index, pkv_stream* stream, int32_t sequence,
                                 const pkv_tensor* keys, const pkv_tensor* values) {
  return pkv::guard(__func__, [&]() -> absl::Status {
    PKV_REQUIRE(index);
    PKV_REQUIRE(stream);
    PKV_REQUIRE(keys);
    return index->index->append(stream->stream, sequence, *keys, values, pkv::Index::Mode::kSync);
  });
}

pkv_status pkv_index_reset(pkv_index* index, pkv_stream* stream, int32_t sequence) {
  return pkv::guard(__func__, [&]() -> absl::Status {
    PKV_REQUIRE(index);
    PKV_REQUIRE(stream);
    return index->index->reset(stream->stream, sequence);
  });
}

pkv_status pkv_index_length(const pkv_index* index, int32_t sequence, int64_t* out) {
  return pkv::guard(__func__, [&]() -> absl::Status {
    PKV_REQUIRE(out);
    *out = 0;
    PKV_REQUIRE(index);
    PKV_RETURN_IF_ERROR(index->index->check_sequence(sequence));
    *out = index->index->length(sequence);
    return absl::OkStatus();
  });
}

pkv_status pkv_index_stats_init(pkv_index_stats* stats, size_t struct_size) {
  return pkv::guard(__func__, [&]() -> absl::Status {
    PKV_REQUIRE(stats);
    return pkv::init_struct(stats, struct_size, {}, "pkv_index_stats");
  });
}

pkv_status pkv_index_stats_sync(const pkv_index* index, pkv_stream* stream, pkv_index_stats* out) {
  return pkv::guard(__func__, [&]() -> absl::Status {
    PKV_REQUIRE(out);
    PKV_REQUIRE(index);
    PKV_REQUIRE(stream);
    PKV_ASSIGN_OR_RETURN(const pkv_index_stats stats, index->index->stats_sync(stream->stream));
    return pkv::write_struct(out, stats, "pkv_index_stats");
  });
}

pkv_status pkv_index_export_sync(const pkv_index* index, pkv_stream* stream, int32_t sequence,
                                 int32_t kv_head, int64_t begin, int64_t count,
                                 const pkv_records* out) {
  return pkv::guard(__func__, [&]() -> absl::Status {
    PKV_REQUIRE(out);
    PKV_REQUIRE(index);
    PKV_REQUIRE(stream);
    PKV_ASSIGN_OR_RETURN(const pkv_records records,
                         pkv::read_struct(out, pkv_records{}, "pkv_records"));
    return index->index->export_sync(stream->stream, sequence, kv_head, begin, count, records);
  });
}

pkv_status pkv_index_save_sync(const pkv_index* index, pkv_stream* stream, const char* path,
                               uint32_t flags) {
  return pkv::guard(__func__, [&]() -> absl::Status {
    PKV_REQUIRE(index);
    PKV_REQUIRE(stream);
    PKV_REQUIRE(path);
    if ((flags & ~uint32_t{PKV_SAVE_OVERWRITE}) != 0) {
      return absl::InvalidArgumentError(
          pkv::str_cat("flags=", flags, ", accepted: 0 or 1 (PKV_SAVE_OVERWRITE)"));
    }
    return index->index->save_sync(stream->stream, path, (flags & PKV_SAVE_OVERWRITE) != 0);
  });
}

pkv_status pkv_index_load_sync(pkv_device* device, pkv_stream* stream, const char* path,
                               pkv_index** out_index, pkv_codec** out_codec) {
  return pkv::guard(__func__, [&]() -> absl::Status {
    if (out_codec != nullptr) *out_codec = nullptr;
    PKV_REQUIRE(out_index);
    *out_index = nullptr;
    PKV_REQUIRE(device);
    PKV_REQUIRE(stream);
    PKV_REQUIRE(path);
    auto index = std::make_unique<pkv_index>();
    auto codec = std::make_unique<pkv_codec>();
    PKV_ASSIGN_OR_RETURN(index->index, pkv::Index::load_sync(device->device, stream->stream, path));
    codec->codec = index->index->codec();
    *out_index = index.release();
    if (out_codec != nullptr) *out_codec = codec.release();
    return absl::OkStatus();
  });
}

pkv_status pkv_index_restore_sync(pkv_index* index, pkv_stream* stream, const char* path) {
  return pkv::guard(__func__, [&]() -> absl::Status {
    PKV_REQUIRE(index);
    PKV_REQUIRE(stream);
    PKV_REQUIRE(path);
    return index->index->restore_sync(stream->stream, path);
  });
}
