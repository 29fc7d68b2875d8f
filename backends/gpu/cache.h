// The slots that a cache uses besides the stages (pariskv_backend.h).
#pragma once

#include "backends/gpu/gpu_rt.h"
#include "pariskv/pariskv_backend.h"

namespace PKV_GPU_NS {

pkv_status memory_words(pkv_backend_device* device, pkv_backend_stream* stream, int32_t count,
                        void* const* targets, const uint64_t* values);
pkv_status place(pkv_backend_device* device, pkv_backend_stream* stream,
                 const pkv_place_args* args);
pkv_status advance(pkv_backend_device* device, pkv_backend_stream* stream,
                   const pkv_advance_args* args);
pkv_status merge_outputs(pkv_backend_device* device, pkv_backend_stream* stream,
                         const pkv_merge_args* args);

}  // namespace PKV_GPU_NS
