// What each stage accepts: sizes, dtypes and options. A step accepts what all of its stages do.
#pragma once

#include "pariskv/pariskv_backend.h"

namespace pkv::cpu {

pkv_status check_vote(const pkv_host* host, const pkv_vote_args& args);
pkv_status check_select(const pkv_host* host, const pkv_select_args& args);
pkv_status check_rerank(const pkv_host* host, const pkv_rerank_args& args);
pkv_status check_fetch(const pkv_host* host, const pkv_fetch_args& args);
// `row_keys`, `row_values`: the fetched rows, wherever they lie.
pkv_status check_attend(const pkv_host* host, const pkv_attend_args& args,
                        const pkv_tensor& row_keys, const pkv_tensor& row_values);

}  // namespace pkv::cpu
