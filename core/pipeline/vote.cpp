// Stage vote: one number per indexed key. docs/algorithm.md, section 4.
#include "core/base/checked.h"
#include "core/base/text.h"
#include "core/pipeline/checks.h"
#include "core/pipeline/page_checks.h"
#include "core/pipeline/run_stage.h"
#include "core/pipeline/stages.h"

namespace pkv {
namespace {

absl::Status check_options(const pkv_vote_args& a) {
  const bool is_tier = a.codec.geometry->vote == PKV_VOTE_TIER;
  PKV_RETURN_IF_ERROR(check_range("vote_group", a.vote_group, PKV_VOTE_GROUP_SUM,
                                  is_tier ? PKV_VOTE_GROUP_SUM : PKV_VOTE_GROUP_HEADS));
  return check_range("rho_of", a.rho_of, PKV_RHO_OF_KEYS,
                     is_tier ? PKV_RHO_OF_CENTROIDS : PKV_RHO_OF_KEYS);
}

absl::Status check_memory(const pkv_vote_args& a) {
  const pkv_batch& batch = a.batch;
  if (a.codec.geometry->vote == PKV_VOTE_TIER) {
    PKV_RETURN_IF_ERROR(check_pointer("occupancy", a.occupancy, batch.batch));
  } else {
    PKV_RETURN_IF_ERROR(check_absent("occupancy", a.occupancy, "with vote=graded"));
  }
  PKV_RETURN_IF_ERROR(check_range("votes_stride", a.votes_stride, batch.max_length, INT64_MAX));
  PKV_ASSIGN_OR_RETURN(const int64_t votes,
                       checked_product("votes", {{"batch", batch.batch},
                                                 {"kv_heads", a.codec.geometry->kv_heads},
                                                 {"votes_stride", a.votes_stride},
                                                 {"bytes", int64_t{sizeof(float)}}}));
  return check_pointer("votes", a.votes, batch.max_length == 0 ? 0 : votes);
}

}  // namespace

absl::Status stage_vote_sync(const Stream& stream, pkv_vote_args args) {
  const Device& device = *stream.device();
  PKV_RETURN_IF_ERROR(check_codec(args.codec));
  const pkv_geometry& g = *args.codec.geometry;
  PKV_RETURN_IF_ERROR(check_query_heads(args.query_heads, g.kv_heads));
  PKV_RETURN_IF_ERROR(check_options(args));
  PKV_ASSIGN_OR_RETURN(const BatchNumbers batch,
                       check_batch(stream, args.batch, g.kv_heads, Sequences::kRead));
  PKV_RETURN_IF_ERROR(check_memory(args));
  PKV_ASSIGN_OR_RETURN(const TensorView queries,
                       check_tensor(device, "queries", args.queries,
                                    {exactly("b", args.batch.batch),
                                     exactly("hq", args.query_heads), exactly("d", g.head_dim)},
                                    kFloatTypes));
  args.queries = queries.tensor();
  if (args.batch.batch == 0) return absl::OkStatus();
  PKV_RETURN_IF_ERROR(check_store(device, g, args.store));
  PKV_RETURN_IF_ERROR(
      check_store_spans(stream, g, args.store, {batch.sequences, {}, batch.lengths}));
  PKV_RETURN_IF_ERROR(check_codec_sets(stream, args.codec, args.batch.batch));
  return run_stage_sync(stream, "vote", device.backend().vote, args);
}

}  // namespace pkv
