// Stage fetch has no kernels yet.
#include "backends/gpu/missing.h"
#include "backends/gpu/stages.h"

namespace PKV_GPU_NS {
namespace {

constexpr char kStage[] = "fetch";

}  // namespace

pkv_fetch_slots fetch_slots() { return missing_slots<pkv_fetch_slots, pkv_fetch_args, kStage>(); }

}  // namespace PKV_GPU_NS
