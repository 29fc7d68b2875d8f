// Stage rerank has no kernels yet.
#include "backends/gpu/missing.h"
#include "backends/gpu/stages.h"

namespace PKV_GPU_NS {
namespace {

constexpr char kStage[] = "rerank";

}  // namespace

pkv_rerank_slots rerank_slots() {
  return missing_slots<pkv_rerank_slots, pkv_rerank_args, kStage>();
}

}  // namespace PKV_GPU_NS
