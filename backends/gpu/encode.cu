// Stage encode has no kernels yet.
#include "backends/gpu/missing.h"
#include "backends/gpu/stages.h"

namespace PKV_GPU_NS {
namespace {

constexpr char kStage[] = "encode";

}  // namespace

pkv_encode_slots encode_slots() {
  return missing_slots<pkv_encode_slots, pkv_encode_args, kStage>();
}

}  // namespace PKV_GPU_NS
