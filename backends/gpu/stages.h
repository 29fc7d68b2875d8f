// The slots of each stage, one <stage>.cu per stage.
#pragma once

#include "backends/gpu/gpu_rt.h"
#include "pariskv/pariskv_backend.h"

namespace PKV_GPU_NS {

pkv_fit_slots fit_slots();
pkv_encode_slots encode_slots();
pkv_vote_slots vote_slots();
pkv_select_slots select_slots();
pkv_rerank_slots rerank_slots();
pkv_fetch_slots fetch_slots();
pkv_attend_slots attend_slots();
pkv_step_slots step_slots();

}  // namespace PKV_GPU_NS
