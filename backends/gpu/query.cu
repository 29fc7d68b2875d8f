#include "backends/gpu/query.h"

#include PKV_GPU_TRAITS

namespace PKV_GPU_NS {

PreparedQueries take_prepared_queries(Scratch& scratch, const pkv_geometry& geometry, int64_t rows,
                                      int32_t query_heads) {
  const int32_t group = query_heads / geometry.kv_heads;
  PreparedQueries out{};
  out.heads = scratch.take<float>(rows * group * geometry.head_dim);
  out.sum = scratch.take<float>(rows * geometry.head_dim);
  out.bad = scratch.take<int32_t>(rows);
  out.group = group;
  return out;
}

gpuError_t launch_prepare_queries(const pkv_codec_params& codec, const pkv_tensor& queries,
                                  int64_t rows, const PreparedQueries& out, gpuStream_t stream) {
  const QueryArgs args = {view_of(codec), view_of(queries), rows, out};
  LaunchShape shape;
  shape.grid_y = grid_rows(rows);
  shape.threads = Traits::kQueryThreads;
  shape.dynamic_bytes =
      int64_t{Traits::kQueryThreads} / 32 * codec.geometry->head_dim * int64_t{sizeof(float)};
  return launch("prepare_queries", prepare_queries<Traits>, shape, stream, args);
}

}  // namespace PKV_GPU_NS
