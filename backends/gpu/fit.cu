// Stage fit has no kernels yet.
#include "backends/gpu/missing.h"
#include "backends/gpu/stages.h"

namespace PKV_GPU_NS {
namespace {

constexpr char kStage[] = "fit";

}  // namespace

pkv_fit_slots fit_slots() { return missing_slots<pkv_fit_slots, pkv_fit_args, kStage>(); }

}  // namespace PKV_GPU_NS
