// Joins attention over disjoint sets of tokens: outputs and their log-sum-exp (pkv_merge).
// docs/algorithm.md, section 8. Traffic: every output once. Bounded, in double.
// Differs from core/pipeline/merge.cpp: a thread takes a coordinate.
#include "backends/gpu/cache.h"
#include "backends/gpu/device.h"
#include "backends/gpu/gpu_lanes.cuh"
#include "backends/gpu/gpu_vec.cuh"
#include "backends/gpu/logit.cuh"
#include "backends/gpu/views.h"

namespace PKV_GPU_NS {
namespace {

constexpr int kParts = 64;  // PKV_MERGE_PARTS
constexpr int kThreads = 128;

struct MergePart {
  const std::byte* data;  // [n, hq, dv]
  int64_t token_bytes;
  int64_t head_bytes;
  const float* lse;
};

struct MergePartsArgs {
  MergePart parts[kParts];
  int32_t count;
  pkv_dtype dtype;  // of the parts
  TensorView output;
  float* lse;
  int64_t rows;  // n * hq
  int64_t heads;
  int64_t width;
};

struct MergeWeights {
  double most;
  int32_t with_mass;
  int32_t last;  // of those with mass
};

PKV_DEVICE MergeWeights weights_of(const MergePartsArgs& a, int64_t row) {
  MergeWeights weights = {double{minus_infinity()}, 0, 0};
  for (int32_t i = 0; i < a.count; ++i) {
    const double lse = a.parts[i].lse[row];
    if (!(lse > double{minus_infinity()})) continue;
    weights.most = weights.most < lse ? lse : weights.most;
    weights.last = i;
    ++weights.with_mass;
  }
  return weights;
}

PKV_DEVICE const std::byte* part_row(const MergePart& part, int64_t token, int64_t head) {
  return part.data + token * part.token_bytes + head * part.head_bytes;
}

// A block per row; it has read all before it writes, since the output may be an input.
PKV_KERNEL(kThreads)
merge_parts(MergePartsArgs a) {
  for (int64_t row = block_y(); row < a.rows; row += grid_y()) {
    const int64_t token = row / a.heads;
    const int64_t head = row % a.heads;
    const MergeWeights weights = weights_of(a, row);
    const bool keeps_bits = weights.with_mass == 1 && a.dtype == a.output.dtype;
    double mass = 0;
    for (int32_t i = 0; i < a.count; ++i) {
      const double lse = a.parts[i].lse[row];
      if (lse > double{minus_infinity()}) mass += std::exp(lse - weights.most);
    }
    std::byte* out = a.output.row(token, head);
    for (int64_t j = thread_index(); j < a.width; j += kThreads) {
      if (keeps_bits) {
        const uint32_t bits = load_bits(a.dtype, part_row(a.parts[weights.last], token, head), j);
        if (a.dtype == PKV_DTYPE_F32) {
          reinterpret_cast<uint32_t*>(out)[j] = bits;
        } else {
          reinterpret_cast<uint16_t*>(out)[j] = static_cast<uint16_t>(bits);
        }
        continue;
      }
      double sum = 0;
      for (int32_t i = 0; i < a.count; ++i) {
        const double lse = a.parts[i].lse[row];
        if (!(lse > double{minus_infinity()})) continue;
        sum += std::exp(lse - weights.most) *
               double{load_element(a.dtype, part_row(a.parts[i], token, head), j)};
      }
      store_element(a.output.dtype, out, j, mass > 0 ? static_cast<float>(sum / mass) : 0.0F);
    }
    sync_block();  // all have read the lses
    if (thread_index() != 0 || a.lse == nullptr) continue;
    a.lse[row] = keeps_bits ? static_cast<float>(weights.most)
                 : mass > 0 ? static_cast<float>(weights.most + std::log(mass))
                            : minus_infinity();
  }
}

}  // namespace

pkv_status merge_outputs(pkv_backend_device* device, pkv_backend_stream* stream,
                         const pkv_merge_args* a) {
  return run_stage(device, stream, "merge", [&](gpuStream_t s) {
    MergePartsArgs args{};
    args.count = a->count;
    args.dtype = a->outputs[0].dtype;
    for (int32_t i = 0; i < a->count; ++i) {
      const TensorView view = view_of(a->outputs[i]);
      args.parts[i] = {view.data, view.stride_bytes[0], view.stride_bytes[1], a->lses[i]};
    }
    args.output = view_of(a->output);
    args.lse = a->lse;
    args.heads = a->output.shape[1];
    args.rows = a->output.shape[0] * args.heads;
    args.width = a->output.shape[2];
    LaunchShape shape;
    shape.grid_y = grid_rows(args.rows);
    shape.threads = kThreads;
    return launch("merge_parts", merge_parts, shape, s, args);
  });
}

}  // namespace PKV_GPU_NS
