// Stage select has no kernels yet.
#include "backends/gpu/missing.h"
#include "backends/gpu/stages.h"

namespace PKV_GPU_NS {
namespace {

constexpr char kStage[] = "select";

}  // namespace

pkv_select_slots select_slots() {
  return missing_slots<pkv_select_slots, pkv_select_args, kStage>();
}

}  // namespace PKV_GPU_NS
