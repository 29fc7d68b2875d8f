// The slots of each stage, one file per stage.
#pragma once

#include "pariskv/pariskv_backend.h"

namespace pkv::cpu {

pkv_fit_slots fit_slots();
pkv_encode_slots encode_slots();
pkv_vote_slots vote_slots();
pkv_select_slots select_slots();
pkv_rerank_slots rerank_slots();
pkv_fetch_slots fetch_slots();
pkv_attend_slots attend_slots();
pkv_step_slots step_slots();

}  // namespace pkv::cpu
