// Stages that no GPU backend has yet: they refuse. A stage that is written leaves this file.
#include "backends/gpu/device.h"
#include "backends/gpu/stages.h"

namespace PKV_GPU_NS {
namespace {

pkv_status refuse_stage(pkv_backend_device* device, const char* stage) {
  return backend::refuse(device_of(device).host, PKV_UNIMPLEMENTED, "%s has no stage %s yet", kName,
                         stage);
}

// The slots of a stage without kernels.
template <class Slots, class Args, const char* kStage>
Slots missing_slots() {
  return {[](pkv_backend_device* device, const Args*) { return refuse_stage(device, kStage); },
          [](pkv_backend_device*, const Args*, int64_t* out) {
            *out = 0;
            return pkv_status{PKV_OK};
          },
          [](pkv_backend_device* device, pkv_backend_stream*, const Args*, void*) {
            return refuse_stage(device, kStage);
          }};
}

constexpr char kFit[] = "fit";
constexpr char kEncode[] = "encode";
constexpr char kSelect[] = "select";
constexpr char kRerank[] = "rerank";
constexpr char kFetch[] = "fetch";
constexpr char kAttend[] = "attend";

}  // namespace

pkv_fit_slots fit_slots() { return missing_slots<pkv_fit_slots, pkv_fit_args, kFit>(); }
pkv_encode_slots encode_slots() {
  return missing_slots<pkv_encode_slots, pkv_encode_args, kEncode>();
}
pkv_select_slots select_slots() {
  return missing_slots<pkv_select_slots, pkv_select_args, kSelect>();
}
pkv_rerank_slots rerank_slots() {
  return missing_slots<pkv_rerank_slots, pkv_rerank_args, kRerank>();
}
pkv_fetch_slots fetch_slots() { return missing_slots<pkv_fetch_slots, pkv_fetch_args, kFetch>(); }
pkv_attend_slots attend_slots() {
  return missing_slots<pkv_attend_slots, pkv_attend_args, kAttend>();
}

}  // namespace PKV_GPU_NS
