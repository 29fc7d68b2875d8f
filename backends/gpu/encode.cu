// Launches of stage encode: the tiles, then what is in order of position.
#include "backends/gpu/encode_registers.cuh"

#include "backends/gpu/check.h"
#include "backends/gpu/device.h"
#include "backends/gpu/scratch.h"
#include "backends/gpu/stages.h"
#include "core/format/inv_sqrt.h"
#include PKV_GPU_TRAITS

namespace PKV_GPU_NS {
namespace {

int64_t rows_of(const pkv_encode_args& a) { return int64_t{a.batch} * a.codec.geometry->kv_heads; }
int64_t tokens_of(const pkv_encode_args& a) { return a.keys.shape[2]; }

// Few tokens: small tiles, so that more blocks have one. Many: large ones, since a row's are
// finished one after the other. The bits do not depend on it.
int32_t tile_tokens(int64_t tokens) {
  constexpr int64_t kTilesWanted = 256;
  const int64_t wanted = gpu::round_up(tokens / kTilesWanted, 32);
  if (wanted < Traits::kEncodeLeastTokens) return Traits::kEncodeLeastTokens;
  return wanted < Traits::kEncodeTokens ? static_cast<int32_t>(wanted) : Traits::kEncodeTokens;
}

Tiles take_tiles(Scratch& scratch, const pkv_encode_args& a) {
  Tiles tiles{};
  tiles.tokens = tile_tokens(tokens_of(a));
  tiles.count = (tokens_of(a) + tiles.tokens - 1) / tiles.tokens;
  tiles.value_dim = a.values.ndim != 0 ? a.codec.geometry->value_dim : 0;
  tiles.pieces = 1;
  while (tiles.pieces < 8 && 2 * tiles.pieces * tiles.value_dim <= Traits::kEncodeThreads) {
    tiles.pieces *= 2;
  }
  const int64_t all = rows_of(a) * tiles.count;
  tiles.sums = scratch.take<double>(all * tiles.pieces * tiles.value_dim);
  tiles.range = scratch.take<uint32_t>(all * tiles.pieces * tiles.value_dim);
  tiles.good_counts = scratch.take<int32_t>(all);
  tiles.first_bad = scratch.take<int32_t>(all);
  return tiles;
}

pkv_status supports(pkv_backend_device* device, const pkv_encode_args* args) {
  const pkv_host* host = device_of(device).host;
  const pkv_geometry& geometry = *args->codec.geometry;
  pkv_status status = check_geometry(host, geometry);
  if (status != PKV_OK) return status;
  status = check_floats(host, "keys", args->keys);
  if (status != PKV_OK) return status;
  if (args->values.ndim != 0) {
    status = check_range(host, "value_dim", geometry.value_dim, format::kMinHeadDim,
                         format::kMaxHeadDim);
    return status != PKV_OK ? status : check_floats(host, "values", args->values);
  }
  // Without values there is nothing to make a sketch or a norm of.
  status = check_range(host, "without values sketch_bits", geometry.sketch_bits, 0, 0);
  if (status != PKV_OK) return status;
  return check_range(host, "without values value_norm", geometry.value_norm, 0, 0);
}

pkv_status scratch_bytes(pkv_backend_device* /*device*/, const pkv_encode_args* args,
                         int64_t* out) {
  Scratch scratch(nullptr);
  take_tiles(scratch, *args);
  *out = scratch.bytes();
  return PKV_OK;
}

template <class Coder>
gpuError_t launch_tiles(const pkv_encode_args& a, const EncodeArgs& args, gpuStream_t stream) {
  LaunchShape shape;
  shape.grid_x = static_cast<unsigned>(args.tiles.count);
  shape.grid_y = grid_rows(args.rows);
  shape.threads = Traits::kEncodeThreads;
  shape.dynamic_bytes = Coder::shared_floats(Traits::kEncodeThreads / 32,
                                             a.codec.geometry->head_dim, args.tiles.value_dim) *
                        int64_t{sizeof(float)};
  return launch("encode_tiles", encode_tiles<Traits, Coder>, shape, stream, args);
}

// 16-bit elements, two neighbours of which lie in one aligned word, in every row.
bool has_pairs(const TensorView& view) {
  if (dtype_bytes(view.dtype) != 2) return false;
  bool result = reinterpret_cast<uintptr_t>(view.data) % 4 == 0;
  for (const int64_t stride : view.stride_bytes) result = result && stride % 4 == 0;
  return result;
}

// Whether vectors fit registers, both in 16 bits and one as wide as the other.
bool fits_registers(const EncodeArgs& args) {
  const bool is_alike = args.tiles.value_dim == args.codec.geometry.head_dim;
  return args.codec.key_plan.rounds == 1 && has_pairs(args.keys) &&
         (args.has_values == 0 || (is_alike && has_pairs(args.values)));
}

// The first that takes the shape. Scalar4 has all widths in registers, the others the commonest.
template <class KeyTable>
gpuError_t launch_coder(const pkv_encode_args& a, const EncodeArgs& args, gpuStream_t stream) {
  const int32_t d = a.codec.geometry->head_dim;
  if (fits_registers(args)) {
    if (d == 128) return launch_tiles<RegisterCoder<KeyTable, 8>>(a, args, stream);
    if constexpr (std::is_same_v<KeyTable, Normal4Table>) {
      if (d == 64) return launch_tiles<RegisterCoder<KeyTable, 4>>(a, args, stream);
      if (d == 256) return launch_tiles<RegisterCoder<KeyTable, 16>>(a, args, stream);
    }
  }
  return launch_tiles<SharedCoder<KeyTable>>(a, args, stream);
}

gpuError_t launch_codec(const pkv_encode_args& a, const EncodeArgs& args, gpuStream_t stream) {
  switch (a.codec.geometry->codec) {
    case PKV_CODEC_POLAR4: return launch_coder<PolarTable>(a, args, stream);
    case PKV_CODEC_SCALAR5: return launch_coder<Normal5Table>(a, args, stream);
    default: return launch_coder<Normal4Table>(a, args, stream);
  }
}

gpuError_t launch_finish(const pkv_encode_args& a, const EncodeArgs& args, gpuStream_t stream) {
  const FinishArgs finish = {
      args.tiles,    args.store, args.values, a.sequences,
      a.starts,      a.counts,   args.rows,   args.has_values != 0 ? a.value_sums : nullptr,
      a.good_counts, a.first_bad};
  LaunchShape shape;
  shape.grid_x = grid_tiles(args.tiles.value_dim, Traits::kFinishThreads);
  if (shape.grid_x == 0) shape.grid_x = 1;
  shape.grid_y = grid_rows(args.rows);
  shape.threads = Traits::kFinishThreads;
  return launch("finish_rows", finish_rows<Traits>, shape, stream, finish);
}

pkv_status run(pkv_backend_device* device, pkv_backend_stream* stream, const pkv_encode_args* args,
               void* scratch) {
  return run_stage(device, stream, "encode", [&](gpuStream_t s) {
    const pkv_encode_args& a = *args;
    Scratch pieces(scratch);
    EncodeArgs encode{};
    encode.codec = view_of(a.codec);
    encode.store = view_of(a.store, *a.codec.geometry);
    encode.keys = view_of(a.keys);
    encode.values = view_of(a.values);
    encode.has_values = a.values.ndim != 0 ? 1 : 0;
    encode.sequences = a.sequences;
    encode.starts = a.starts;
    encode.counts = a.counts;
    encode.rows = rows_of(a);
    encode.key_inv_sqrt = format::inv_sqrt(a.codec.geometry->head_dim);
    if (encode.has_values != 0) {
      encode.value_inv_sqrt = format::inv_sqrt(a.codec.geometry->value_dim);
    }
    encode.tiles = take_tiles(pieces, a);
    encode.occupancy = a.codec.geometry->vote == PKV_VOTE_TIER ? a.occupancy : nullptr;
    const gpuError_t error = launch_codec(a, encode, s);
    return error == gpuSuccess ? launch_finish(a, encode, s) : error;
  });
}

}  // namespace

pkv_encode_slots encode_slots() { return {supports, scratch_bytes, run}; }

}  // namespace PKV_GPU_NS
