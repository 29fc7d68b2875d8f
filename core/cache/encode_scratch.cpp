#include "core/cache/encode_scratch.h"

#include <string_view>

#include "core/base/status.h"
#include "core/base/text.h"
#include "core/pipeline/run_stage.h"

namespace pkv {

absl::StatusOr<int64_t> encode_scratch_bytes(const CacheShape& shape) {
  const pkv_geometry& g = shape.geometry;
  const int64_t key_shape[4] = {1, g.kv_heads, shape.desc.page_tokens, g.head_dim};
  const int64_t value_shape[4] = {1, g.kv_heads, shape.desc.page_tokens, g.value_dim};
  void* const no_pages = nullptr;
  pkv_encode_args args{};
  args.struct_size = sizeof args;
  args.batch = 1;
  args.codec.geometry = &g;
  args.store.capacity = shape.desc.page_tokens;
  args.store.row_bytes = shape.record_row_bytes;
  args.store.pages = &no_pages;
  args.store.pages_stride = 1;
  args.keys.device_type = shape.device->info().device_type;
  args.keys.device_id = shape.device->info().device_id;
  args.keys.ndim = 4;
  args.keys.dtype = shape.desc.dtype;
  args.keys.shape = key_shape;
  if (g.value_dim > 0) {
    args.values = args.keys;
    args.values.shape = value_shape;
  }
  return stage_scratch_bytes(*shape.device, "encode", shape.device->backend().encode, args);
}

absl::Status check_same_geometry(const pkv_geometry& codec, const pkv_geometry& cache) {
  struct Field {
    std::string_view name;
    uint64_t codec, cache;
  };
  const auto number = [](int32_t value) { return static_cast<uint64_t>(value); };
  for (const Field& field :
       {Field{"kv_heads", number(codec.kv_heads), number(cache.kv_heads)},
        Field{"head_dim", number(codec.head_dim), number(cache.head_dim)},
        Field{"value_dim", number(codec.value_dim), number(cache.value_dim)},
        Field{"v_source", number(codec.v_source), number(cache.v_source)},
        Field{"codec", number(codec.codec), number(cache.codec)},
        Field{"vote", number(codec.vote), number(cache.vote)},
        Field{"rounds", number(codec.rounds), number(cache.rounds)},
        Field{"sketch_bits", number(codec.sketch_bits), number(cache.sketch_bits)},
        Field{"sketch_stride", number(codec.sketch_stride), number(cache.sketch_stride)},
        Field{"value_norm", number(codec.value_norm), number(cache.value_norm)},
        Field{"seed", codec.seed, cache.seed}}) {
    if (field.codec == field.cache) continue;
    return absl::InvalidArgumentError(
        str_cat(field.name, ": of the codec=", field.codec, ", of the cache=", field.cache));
  }
  return absl::OkStatus();
}

}  // namespace pkv
