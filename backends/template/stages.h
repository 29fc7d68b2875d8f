// The slots of each stage and of the layout, one file each.
#pragma once

#include "pariskv/pariskv_backend.h"

namespace pkv::template_backend {

void fill_store_slots(pkv_backend& table);
pkv_fit_slots fit_slots();
pkv_encode_slots encode_slots();
pkv_vote_slots vote_slots();
pkv_select_slots select_slots();
pkv_rerank_slots rerank_slots();
pkv_fetch_slots fetch_slots();
pkv_attend_slots attend_slots();

}  // namespace pkv::template_backend
