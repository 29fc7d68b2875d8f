#include "core/index/file_geometry.h"

#include "core/format/records.h"
#include "core/index/file_checksum.h"

namespace pkv {

FileGeometry file_geometry(const pkv_geometry& geometry, const CodecOptions& options,
                           int32_t sequences, int64_t capacity) {
  FileGeometry f{};
  f.subspace = format::kSubspace;
  f.kv_heads = geometry.kv_heads;
  f.head_dim = geometry.head_dim;
  f.value_dim = geometry.value_dim;
  f.v_source = geometry.v_source;
  f.codec = geometry.codec;
  f.vote = geometry.vote;
  f.rounds = geometry.rounds;
  f.sketch_bits = geometry.sketch_bits;
  f.sketch_stride = geometry.sketch_stride;
  f.value_norm = geometry.value_norm;
  f.center = options.center ? 1 : 0;
  f.balance = options.balance ? 1 : 0;
  f.fit_picked = options.fit_picked ? 1 : 0;
  f.nonfinite = options.isolate ? 1 : 0;
  f.sequences = sequences;
  f.seed = geometry.seed;
  f.capacity = capacity;
  f.levels = levels_checksum(geometry.codec, geometry.sketch_bits);
  return f;
}

}  // namespace pkv
