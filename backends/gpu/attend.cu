// Stage attend has no kernels yet.
#include "backends/gpu/missing.h"
#include "backends/gpu/stages.h"

namespace PKV_GPU_NS {
namespace {

constexpr char kStage[] = "attend";

}  // namespace

pkv_attend_slots attend_slots() {
  return missing_slots<pkv_attend_slots, pkv_attend_args, kStage>();
}

}  // namespace PKV_GPU_NS
