// The decode step of a batch in one cooperative kernel. docs/algorithm.md, sections 4 to 8.
// Order within a row, and what hides what:
//   the first loads of the scan | query preparation
//   scan: votes to 16-bit keys, histogram          (clears of the mailbox arrive meanwhile)
//   exchange: the cut; list of candidates
//   records gathered, estimates                    (ties of the cut travel meanwhile)
//   exchange: sums of exponentials; scores
//   exchange: the cut of the scores; rows requested
//   dense attention, candidates written, samples   (rows, hits and the tail travel meanwhile)
//   rows' attention; exchange: partial outputs
#pragma once

#include <cooperative_groups.h>

#include "backends/cuda/fused_output.cuh"
#include "backends/cuda/fused_query.cuh"

namespace pkv::cuda {

// 4.4: no candidates, output 0.
template <int kDim>
PKV_APART void write_bad_row(const FusedArgs& a, const BlockRow& at, int32_t rank, bool has_cache) {
  if (rank != 0) return;
  const int t = thread_index();
  if (t == 0) {
    a.candidate_counts[at.row] = 0;
    a.counts[at.row] = 0;
    if (has_cache) cache_row(a, at).counts[0] += 1;
  }
#pragma unroll 1
  for (int64_t i = t; i < a.candidates_stride; i += kFusedThreads) {
    a.candidates[at.row * a.candidates_stride + i] = -1;
  }
#pragma unroll 1
  for (int32_t i = t; i < a.k; i += kFusedThreads) {
    a.positions[at.row * a.k + i] = -1;
    if (a.scores != nullptr) a.scores[at.row * a.k + i] = minus_infinity();
  }
  if (t < a.group && a.tail_samples > 0 && a.rest_lse != nullptr) {
    a.rest_lse[at.row * a.group + t] = minus_infinity();
  }
  if (a.sample_estimates != nullptr) {
#pragma unroll 1
    for (int32_t i = t; i < a.group * a.tail_samples; i += kFusedThreads) {
      a.sample_estimates[at.row * a.group * a.tail_samples + i] = quiet_nan();
    }
  }
  if (a.has_attention == 0) return;
  const int32_t dv = a.codec.geometry.value_dim;
#pragma unroll 1
  for (int32_t i = t; i < a.group * dv; i += kFusedThreads) {
    store_element(a.output.dtype, a.output.row(at.entry, int64_t{at.head} * a.group + i / dv),
                  i % dv, 0.0F);
  }
  if (t < a.group && a.lse != nullptr) a.lse[at.row * a.group + t] = minus_infinity();
}

// Between the dense tokens and the rows: hits, results and the tail. All threads.
template <int kDim, int kTiles>
PKV_DEVICE void finish_retrieval(const FusedArgs& a, const BlockRow& at, const Team& team,
                                 const Selection& selection, const Entries& e, const HitRoom& hits,
                                 const HitRange& range, float* room, FusedShared<kDim>& shared) {
  write_candidates<kDim, kTiles>(a, at, team, selection, e, shared);
  write_samples(a, at, team, e, shared);
  settle_hits<kDim>(a, at, team, hits, range);
  if (a.tail == PKV_TAIL_DROP) return;
  if (a.tail == PKV_TAIL_SAMPLED) {
    sum_all_samples(a, at, e, hits, range.own, room, shared);
  }
  settle_tail(a, team, e, hits, range, shared);
}

// Bits of which phase the barriers are in.
inline constexpr uint32_t kRowParity = 1;
inline constexpr uint32_t kDenseParity = 2;

PKV_DEVICE void await_phase(uint64_t* barrier, uint32_t bit, uint32_t& parity) {
  wait_barrier(barrier, (parity & bit) != 0 ? 1 : 0);
  parity ^= bit;
}

// 8, and what comes behind the hits' cut. All threads.
template <int kDim, int kTiles, bool kIsWide>
PKV_DEVICE void attend_row(const FusedArgs& a, const BlockRow& at, const Team& team,
                           const Selection& selection, const Entries& e, const HitRoom& hits,
                           const HitRange& range, uint32_t& parity, unsigned char* arena,
                           FusedShared<kDim>& shared) {
  auto* room = reinterpret_cast<float*>(arena + a.arena.join);
  const auto* tags = reinterpret_cast<const uint64_t*>(arena + a.arena.tags);
  const auto dense = static_cast<int32_t>(at.dense.end - at.dense.begin);
  // Dense tokens that wait in slots are the first there.
  const int32_t rows_most = a.arena.row_slots - at.dense_slots;
  unsigned char* row_slots = arena + at.dense_slots * a.arena.row_bytes;
  const bool has_cache = shared.has_cache != 0;
  if (range.own > 0) {
    const int32_t count = range.own < rows_most ? range.own : rows_most;
    request_rows(a, at, e, hits, 0, count, row_slots, tags, shared);
  }
  PKV_MARK(a, 8);
#pragma unroll 1
  for (int32_t first = 0; first < kHeadsAtOnce * kTiles; first += kHeadsAtOnce) {
    if (kTiles > 1 && first >= a.group) break;
    WarpAttention<kDim, kIsWide> attention(a, shared, first);
    // Dense tokens, then rows.
#pragma unroll 1
    for (int kind = 0; kind < 2; ++kind) {
      const bool is_rows = kind == 1;
      if (is_rows && first == 0) {
        PKV_MARK(a, 9);
        finish_retrieval<kDim, kTiles>(a, at, team, selection, e, hits, range, room, shared);
        PKV_MARK(a, 10);
      }
      const int32_t all = is_rows ? range.own : dense;
      const int32_t most = is_rows ? rows_most : dense;
      const unsigned char* slots = is_rows ? row_slots : (at.dense_slots > 0 ? arena : nullptr);
      if (!is_rows && first == 0 && at.dense_slots > 0) {
        await_phase(&shared.dense_barrier, kDenseParity, parity);
      }
#pragma unroll 1
      for (int32_t begin = 0; begin < all; begin += most) {
        const int32_t left = all - begin;
        const int32_t count = left < most ? left : most;
        // Rows stay in their slots for the next heads where there is room for all.
        const bool is_requested = begin == 0 && first == 0;
        const bool stays = all <= most;
        if (is_rows && !is_requested && !stays) {
          request_batch(a, e, hits, begin, begin + count, row_slots, tags, shared);
        }
        if (is_rows && (is_requested || !stays)) {
          await_phase(&shared.row_barrier, kRowParity, parity);
        }
        attention.attend(a, slots, count, is_rows ? hits.place() + begin : nullptr, shared);
      }
    }
    if (first == 0) {
      PKV_MARK(a, 11);
      if (a.tail == PKV_TAIL_SAMPLED) await_tail(a, shared);
    }
    post_partial(a, at, team, attention, first, room, shared);
  }
  PKV_MARK(a, 12);
  if (has_cache) claim_lines<kDim>(a, tags, hits);
  write_outputs(a, at, team);
  if (has_cache) {
    keep_rows<kDim>(a, hits, range.own <= rows_most ? row_slots : nullptr);
  }
}

// Who does what until the scan. First warps 1 .. G the heads, the last one their sum, those before
// it the row; then the same warps the heads, the last ones the vote, and those between copies. Warp
// 0 has the grid's barrier.
inline constexpr int kSumWarp = kFusedWarps - 1;
inline constexpr int kFirstRowWarp = kSumWarp - 3;  // one for each RowPart
inline constexpr int kFirstVoteWarp = kFusedWarps - kVoteWarps;
static_assert(kFirstVoteWarp > kFusedHeads + 1);

template <int kDim, int kTiles, bool kIsWide>
PKV_DEVICE void fused_row(const FusedArgs& a, int64_t row, int32_t rank,
                          cooperative_groups::grid_group::arrival_token* token, uint32_t& parity,
                          unsigned char* arena, FusedShared<kDim>& shared) {
  using Group = LaneGroup<32>;
  const BlockRow& at = shared.at;
  const Team& team = shared.team;
  const int warp = Group::index();
  // Of those that copy: number, and how many they are.
  const int copier = warp - 1 - a.group;
  const int copiers = kFirstVoteWarp - 1 - a.group;
  const bool is_copier = copier >= 0 && copier < copiers;
  // One thread waits there for the clears to be seen, in the warp that has nothing else to do.
  if (token != nullptr) *token = cooperative_groups::this_grid().barrier_arrive();
  if (warp == kSumWarp || (warp >= 1 && warp <= a.group)) {
    prepare_vector(a, short_row_index(row, a.codec.geometry.kv_heads),
                   warp == kSumWarp ? a.group : warp - 1, shared);
  } else if (warp >= kFirstRowWarp) {
    find_row_part(a, row, rank, static_cast<RowPart>(warp - kFirstRowWarp), shared);
  } else if (is_copier) {
#pragma unroll 1
    for (int i = 32 * copier + Group::rank(); i < kWindowBins; i += 32 * copiers) {
      shared.scan.histogram[i] = 0;
    }
  }
  if (warp != kSumWarp && (warp < 1 || warp > a.group)) join_raw();
  sync_block();
  VoteSample<kDim> sample;
  sample.load(a, at);
  const bool is_early = at.dense_slots > 0;
  if (warp >= 1 && warp <= a.group) {
    prepare_scalar_head(kDim, kDim / 32, a.codec.key_plan.gain, shared.rotated[warp - 1],
                        shared.words[warp - 1], &shared.terms[warp - 1]);
  } else if (warp >= kFirstVoteWarp) {
    prepare_vote(a, warp - kFirstVoteWarp, shared);
  } else if (is_copier) {
    const int thread = 32 * copier + Group::rank();
    if (copier == 0) find_cache(a, shared);
    if (is_early) request_dense(a, arena, copier, copiers, shared);
    load_tags(a, reinterpret_cast<uint64_t*>(arena + a.arena.tags), thread, 32 * copiers, shared);
    if (a.tail != PKV_TAIL_DROP) request_value_sums(a, thread, 32 * copiers, shared);
  }
  sync_block();
  if (is_early && thread_index() == 0) arrive_barrier(&shared.dense_barrier);
  PKV_MARK(a, 1);
  sample.sum(VoteQuery<kDim>(shared), shared);
  sync_block();
  const KeyScale scale = key_scale(shared);
  if (thread_index() == 0) shared.scale = scale;
  PKV_MARK(a, 2);
  uint16_t* keys = a.arena.keys_fit != 0 ? reinterpret_cast<uint16_t*>(arena + a.arena.keys)
                                         : a.spill.keys + at.row * a.spill.key_stride + at.begin;
  const bool is_bad = shared.bad != 0;
  if (is_bad) {
    // Nothing is a candidate.
  } else if (scale.window != 0) {
    scan_keys<true, kDim>(a.store.layout.factors, keys, scale);
  } else {
    scan_keys<false, kDim>(a.store.layout.factors, keys, scale);
  }
  if (is_copier) await_value_sums();
  PKV_MARK(a, 3);
  if (token != nullptr) cooperative_groups::this_grid().barrier_wait(std::move(*token));
  if (is_bad) {
    if (is_early) await_phase(&shared.dense_barrier, kDenseParity, parity);
    write_bad_row<kDim>(a, at, rank, shared.has_cache != 0);
    return;
  }
  const Selection found = select_keys(a, at, keys, shared);
  PKV_MARK(a, 4);
  list_entries(a, at, team, found, keys, arena, shared);
  const Selection& selection = shared.selection;
  const Entries& e = shared.entries;
  if (!is_early) prefetch_dense(a, shared);
  PKV_MARK(a, 5);
  estimate_entries<kDim, kTiles>(a.store.layout.records, a.group, a.logit);
  PKV_MARK(a, 6);
  settle_ties(team, selection, e, shared);
  exchange_sums(a, at, team, selection, e, shared);
  const float bound = score_bound(a, shared);
  score_entries<kDim, kTiles>(a, e, bound, shared);
  const HitRoom hits = {reinterpret_cast<int32_t*>(arena + a.arena.hits), a.mailbox.hit_capacity};
  find_hits(a, selection, e, hits, bound, shared);
  const HitRange& range = shared.hits;
  post_hits(at, team, e, hits, range);
  PKV_MARK(a, 7);
  if (a.has_attention != 0) {
    attend_row<kDim, kTiles, kIsWide>(a, at, team, selection, e, hits, range, parity, arena,
                                      shared);
  } else {
    finish_retrieval<kDim, kTiles>(a, at, team, selection, e, hits, range, nullptr, shared);
  }
  PKV_MARK(a, 13);
}

// Blocks along x: a team; along y: teams. Each block has its part of a row, then of the next one of
// its team.
template <int kDim, int kTiles, bool kIsWide>
__global__ void __launch_bounds__(kFusedThreads, 1)
    fused_step(const __grid_constant__ FusedArgs a) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900 && __CUDA_ARCH__ < 1000
  auto& shared = fused_shared<kDim>();
  unsigned char* arena =
      reinterpret_cast<unsigned char*>(&shared) + gpu::round_up(sizeof(FusedShared<kDim>), 128);
  PKV_MARK(a, 0);
  if (thread_index() == 0) {
    init_barrier(&shared.row_barrier);
    init_barrier(&shared.dense_barrier);
  }
  const auto rank = static_cast<int32_t>(block_x());
  const Team team(a.mailbox, a.team, block_y(), rank);
  clear_mailbox(a.mailbox, team);
  if (thread_index() == 0) shared.team = team;
  uint32_t parity = 0;
  cooperative_groups::grid_group::arrival_token token;
  auto* cleared = &token;  // the grid's barrier behind the clears, until it is passed
#pragma unroll 1
  for (int64_t row = block_y(); row < a.rows; row += grid_y()) {
    fused_row<kDim, kTiles, kIsWide>(a, row, rank, cleared, parity, arena, shared);
    cleared = nullptr;
    sync_block();
    if (thread_index() == 0) ++shared.team.round;
  }
#endif
}

}  // namespace pkv::cuda
