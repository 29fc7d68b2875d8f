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

#include "backends/cuda/fused_attend.cuh"
#include "backends/cuda/fused_query.cuh"

namespace pkv::cuda {

// 4.4: no candidates, output 0.
template <int kDim>
PKV_APART void write_bad_row(const FusedArgs& a, const BlockRow& at, int32_t rank) {
  if (rank != 0) return;
  const int t = thread_index();
  if (t == 0) {
    a.candidate_counts[at.row] = 0;
    a.counts[at.row] = 0;
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
template <int kDim>
PKV_DEVICE void finish_retrieval(const FusedArgs& a, const BlockRow& at, const Team& team,
                                 const Selection& selection, const Entries& e, const HitRoom& hits,
                                 const HitRange& range, float* room, FusedShared<kDim>& shared) {
  settle_hits<kDim>(a, at, team, hits, range);
  write_candidates(a, at, team, selection, e, shared);
  write_samples(a, at, team, e, shared);
  if (a.tail == PKV_TAIL_DROP) return;
  const bool has_samples = a.tail == PKV_TAIL_SAMPLED;
#pragma unroll 1
  for (int32_t first = 0; first < a.group; first += kHeadsAtOnce) {
    if (has_samples) {
      sum_samples(a, at, e, hits, range.own, first, room, shared.join, shared);
    }
    if (thread_index() < kHeadsAtOnce && first + thread_index() < kFusedHeads) {
      shared.samples[first + thread_index()] =
          has_samples ? shared.join.all[thread_index()]
                      : PartialStats{minus_infinity(), 0.0F, 0.0F, 0.0F};
    }
    sync_block();
  }
  post_tail(a, team, e, hits, range, shared.samples, shared);
}

// Bits of which phase the barriers are in.
inline constexpr uint32_t kRowParity = 1;
inline constexpr uint32_t kDenseParity = 2;

// 8: what comes behind the hits' cut. All threads.
template <int kDim, bool kIsWide>
PKV_DEVICE void attend_row(const FusedArgs& a, const BlockRow& at, const Team& team,
                           const Selection& selection, const Entries& e, const HitRoom& hits,
                           const HitRange& range, uint32_t& parity, unsigned char* arena,
                           FusedShared<kDim>& shared) {
  auto* room = reinterpret_cast<float*>(arena + a.arena.join);
  const int32_t slots = a.arena.row_slots - at.dense_slots;
  auto* row_slots = arena + at.dense_slots * a.arena.row_bytes;
  if (range.own > 0) {
    request_rows(a, at, e, hits, 0, range.own < slots ? range.own : slots, row_slots, shared);
  }
  PKV_MARK(a, 8);
  if (at.dense_slots > 0) {
    wait_barrier(&shared.dense_barrier, (parity & kDenseParity) != 0 ? 1 : 0);
    parity ^= kDenseParity;
  }
#pragma unroll 1
  for (int32_t first = 0; first < a.group; first += kHeadsAtOnce) {
    WarpAttention<kDim, kIsWide> attention(a, shared, first);
    int64_t before = 0;
    // The dense parts, then rows, as many at a time as there are slots. Rows stay in their slots
    // for the next heads where there is room for all.
    int32_t begin = 0;
#pragma unroll 1
    for (int32_t p = 0;; ++p) {
      TokenSpan span = {};
      if (p < a.part_count) {
        span = dense_span(a, at, p, arena, before);
      } else {
        if (p == a.part_count && first == 0) {
          PKV_MARK(a, 9);
          finish_retrieval(a, at, team, selection, e, hits, range, room, shared);
          PKV_MARK(a, 10);
        }
        if (begin >= range.own) break;
        const int32_t left = range.own - begin;
        const int32_t count = left < slots ? left : slots;
        const bool is_here = begin == 0 && (first == 0 || range.own <= slots);
        if (!is_here) {
          sync_block();  // the slots are read
          request_rows(a, at, e, hits, begin, begin + count, row_slots, shared);
        }
        if (!is_here || first == 0) {
          wait_barrier(&shared.row_barrier, parity & kRowParity);
          parity ^= kRowParity;
        }
        span = slot_span(a, hits, begin, count, row_slots);
        begin += count;
      }
      attention.attend(span);
    }
    if (first == 0) {
      PKV_MARK(a, 11);
      if (a.tail != PKV_TAIL_DROP) await_tail(a, at, team, shared);
    }
    post_partial(a, at, team, attention, first, room, shared);
    sync_block();
  }
  PKV_MARK(a, 12);
  write_outputs<kDim>(a, at, team, room);
}

template <int kDim, int kTiles, bool kIsWide>
PKV_DEVICE void fused_row(const FusedArgs& a, const BlockRow& at, Team& team,
                          cooperative_groups::grid_group::arrival_token* token, uint32_t& parity,
                          unsigned char* arena, FusedShared<kDim>& shared) {
  using Group = LaneGroup<32>;
  uint16_t* keys = a.arena.keys_fit != 0 ? reinterpret_cast<uint16_t*>(arena)
                                         : a.spill.keys + at.row * a.spill.key_stride + at.begin;
  // What the scan reads first travels while the query is prepared.
  if (Group::rank() == 0) {
    const int64_t sampled = VoteSample<kDim>::position(at);
    if (sampled < at.n) {
      prefetch_keys(a.store.layout, at.records, sampled,
                    at.n - sampled < kUnitKeys ? at.n - sampled : kUnitKeys);
    }
    if (Group::index() == 0 && at.length > 0) {
      constexpr int32_t kMost = 2 * VoteScan<kDim>::kKeys;
      prefetch_keys(a.store.layout, at.records, at.begin, at.length < kMost ? at.length : kMost);
    }
  }
  clear_histogram(shared.scan);
  if (thread_index() == 0) {
    shared.bad = 0;
    // 5: candidates are this share of the keys; twice as many are to lie in the window.
    int step = 0;
    while (step < a.rule.steps - 1 && at.n >= a.rule.below[step]) ++step;
    shared.window_deviations = a.quantile[step];
  }
  sync_block();
  if (thread_index() == kFusedThreads - 32) share_row(a, team.rank, shared.at);
  prepare_query(a, at, shared);
  PKV_MARK(a, 1);
  const VoteQuery<kDim> query(shared);
  VoteSample<kDim> sample;
  sample.load(a, at);
  sample.sum(query, shared);
  sync_block();
  const KeyScale scale = key_scale(shared);
  if (thread_index() == 0) shared.scale = scale;
  PKV_MARK(a, 2);
  if (shared.bad == 0) scan_keys(a, at, query, scale, keys, shared.scan.histogram);
  PKV_MARK(a, 3);
  if (token != nullptr) cooperative_groups::this_grid().barrier_wait(std::move(*token));
  if (shared.bad != 0) {
    write_bad_row<kDim>(a, at, team.rank);
    return;
  }
  team.histogram = 0;
  const Selection selection = select_keys(a, at, team, keys, shared);
  PKV_MARK(a, 4);
  const Entries e = list_entries(a, at, team, selection, keys, arena, shared);
  if (a.has_attention != 0) request_dense(a, at, arena, shared);
  PKV_MARK(a, 5);
  estimate_entries<kDim, kTiles>(a, at, e, shared);
  PKV_MARK(a, 6);
  settle_ties(at, team, selection, e, shared);
  exchange_sums(a, at, team, selection, e, shared);
  const float bound = score_bound(a, shared);
  score_entries(a, e, bound, shared);
  const HitRoom hits(arena + a.arena.hits, a.mailbox.hit_capacity);
  const HitRange range = find_hits(a, team, selection, e, hits, bound, shared);
  post_hits(at, team, e, hits, range);
  PKV_MARK(a, 7);
  if (a.has_attention != 0) {
    attend_row<kDim, kIsWide>(a, at, team, selection, e, hits, range, parity, arena, shared);
  } else {
    finish_retrieval(a, at, team, selection, e, hits, range, nullptr, shared);
  }
  PKV_MARK(a, 13);
}

// Block: its part of a row, then of the next one of its team.
template <int kDim, int kTiles, bool kIsWide>
__global__ void __launch_bounds__(kFusedThreads, 1)
    fused_step(const __grid_constant__ FusedArgs a) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900 && __CUDA_ARCH__ < 1000
  PKV_DYNAMIC_SHARED(memory);
  auto& shared = *reinterpret_cast<FusedShared<kDim>*>(memory);
  unsigned char* arena = memory + gpu::round_up(sizeof(FusedShared<kDim>), 128);
  PKV_MARK(a, 0);
  clear_mailbox(a.mailbox, a.team, block_x());
  auto token = cooperative_groups::this_grid().barrier_arrive();
  auto* waits = &token;
  if (thread_index() == 0) {
    init_barrier(&shared.row_barrier);
    init_barrier(&shared.dense_barrier);
  }
  const int64_t teams = grid_x() / a.team;
  Team team{};
  const int64_t number = block_x() / a.team;
  team.size = a.team;
  team.rank = static_cast<int32_t>(block_x() % a.team);
  team.block_words = a.mailbox.block_words;
  team.words = a.mailbox.words + number * a.team * a.mailbox.block_words;
  team.ties = a.mailbox.lists + number * a.mailbox.list_words;
  team.hits = team.ties + kMaxTies;
  uint32_t parity = 0;
#pragma unroll 1
  for (int64_t row = number; row < a.rows; row += teams) {
    // Thread 0 waits for the clears.
    if (thread_index() == 32) shared.at = block_row(a, row, team.rank);
    sync_block();
    fused_row<kDim, kTiles, kIsWide>(a, shared.at, team, waits, parity, arena, shared);
    waits = nullptr;
    ++team.round;
    sync_block();
  }
#endif
}

}  // namespace pkv::cuda
