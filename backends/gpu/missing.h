// The slots of a stage that no GPU backend has yet: they refuse.
#pragma once

#include "backends/gpu/device.h"

namespace PKV_GPU_NS {

inline pkv_status refuse_stage(pkv_backend_device* device, const char* stage) {
  return backend::refuse(device_of(device).host, PKV_UNIMPLEMENTED, "%s has no stage %s yet", kName,
                         stage);
}

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

}  // namespace PKV_GPU_NS
