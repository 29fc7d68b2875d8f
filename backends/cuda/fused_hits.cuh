// Scores of the block's candidates, the k best of the row, and their order. docs/algorithm.md,
// section 6.2. Exact given the scores.
// Entries whose score lies in the cut's bin or above may be hits: their rows are requested at once,
// a few too many, while all of them are listed to the team, which finds who is in and at which
// place.
#pragma once

#include "backends/cuda/fused_sums.cuh"
#include "backends/gpu/score.cuh"

namespace pkv::cuda {

inline constexpr float kBinsPerNat = 16.0F;  // of the window of scores

PKV_DEVICE int32_t score_bin(float bound, float score) {
  const float bin = (bound - score) * kBinsPerNat;
  return bin < static_cast<float>(kWindowBins - 1) ? static_cast<int32_t>(bin) : kWindowBins - 1;
}

template <int kDim>
PKV_DEVICE float score_bound(const FusedArgs& a, const FusedShared<kDim>& shared) {
  float top = shared.top[0];
#pragma unroll 1
  for (int32_t g = 1; g < a.group; ++g) top = top < shared.top[g] ? shared.top[g] : top;
  return top + flog(static_cast<float>(a.group)) + 1.0F / kBinsPerNat;
}

// 6.2: ln sum_g exp(L(est_g) - lse_g)
template <int kHeads>
PKV_DEVICE float short_group_score(const FusedArgs& a, const float* estimates, const float* lse) {
  float share[kHeads];
  float most = minus_infinity();
#pragma unroll
  for (int g = 0; g < kHeads; ++g) {
    share[g] = g < a.group ? a.logit(estimates[g]) - lse[g] : minus_infinity();
    most = larger(most, share[g]);
  }
  float sum = 0.0F;
#pragma unroll
  for (int g = 0; g < kHeads; ++g) sum += exp_below(share[g], most);
  return most + flog(sum);
}

// Scores into the entries' memory, their histogram into shared.scan. All threads.
template <int kDim, int kTiles>
PKV_DEVICE void score_entries(const FusedArgs& a, const Entries& e, float bound,
                              FusedShared<kDim>& shared) {
  const bool is_group = a.rank == PKV_RANK_GROUP;
#pragma unroll 1
  for (int32_t i = thread_index(); i < e.count; i += kFusedThreads) {
    if (e.list[i] == kGone) continue;
    const float* estimates = e.estimates + i * a.group;
    const float score = is_group ? short_group_score<4 * kTiles>(a, estimates, shared.lse)
                                 : mean_score(estimates, 1, a.group, 0);
    e.scores[i] = score;
    if (is_group) atomic_add(shared.scan.histogram + score_bin(bound, score), 1U);
  }
}

// Appends entry i to those found.
template <int kDim>
PKV_DEVICE void find_hit(const Entries& e, const HitRoom& room, int32_t i,
                         FusedShared<kDim>& shared) {
  e.list[i] |= kHitFlag;
  room.found()[atomic_add(&shared.own_hits, 1)] = i;
}

// Exactly the wanted ones, by four histograms of order keys and by position.
template <int kDim>
PKV_APART HitRange find_exact_hits(const Entries e, const HitRoom room, int32_t wanted,
                                   FusedShared<kDim>& shared) {
  using Group = LaneGroup<32>;
  DigitSum digits;
  digits.wanted = static_cast<uint32_t>(wanted);
#pragma unroll 1
  for (int shift = 24; shift >= 0; shift -= 8) {
    digits.next<kDim>(shared.scan, [&] {
#pragma unroll 1
      for (int32_t i = thread_index(); i < e.count; i += kFusedThreads) {
        if (e.list[i] == kGone) continue;
        const uint32_t order = order_key(e.scores[i]);
        if (shift < 24 && order >> (shift + 8) != digits.prefix) continue;
        atomic_add(shared.scan.histogram + (255U - ((order >> shift) & 0xffU)), 1U);
      }
    });
  }
  const auto equal_before = static_cast<int32_t>(shared.scan.cut.team_here);
  const auto equal_wanted = static_cast<int32_t>(digits.wanted);
  const int32_t quota = equal_wanted - equal_before;
  // Equal scores come in by position, so their numbers are counted in order.
  int32_t equals = 0;
#pragma unroll 1
  for (int32_t first = 0; first < e.count; first += kFusedThreads) {
    const int32_t i = first + thread_index();
    const bool is_there = i < e.count && e.list[i] != kGone;
    const uint32_t order = is_there ? order_key(e.scores[i]) : 0;
    if (is_there && order > digits.prefix) find_hit(e, room, i, shared);
    const bool is_equal = is_there && order == digits.prefix;
    const uint32_t lanes = Group::ballot(is_equal);
    if (Group::rank() == 0) shared.scan.sums[Group::index()] = Group::count_bits(lanes);
    sync_block();
    int32_t number = equals + Group::rank_in(lanes);
#pragma unroll 1
    for (int warp = 0; warp < kFusedWarps; ++warp) {
      const auto count = static_cast<int32_t>(shared.scan.sums[warp]);
      if (warp < Group::index()) number += count;
      equals += count;
    }
    if (is_equal && number < quota) find_hit(e, room, i, shared);
    sync_block();
  }
  HitRange range{};
  range.wanted = range.all = wanted;
  range.base = static_cast<int32_t>(digits.team_before) +
               (equal_before < equal_wanted ? equal_before : equal_wanted);
  return range;
}

// Finds the block's entries that may be hits, in order, and shared.hits. All threads, after
// score_entries.
template <int kDim>
PKV_DEVICE void find_hits(const FusedArgs& a, const Selection& selection, const Entries& e,
                          const HitRoom& room, float bound, FusedShared<kDim>& shared) {
  HitRange range{};
  range.wanted = a.k < selection.count ? a.k : selection.count;
  if (thread_index() == 0) shared.own_hits = 0;
  if (range.wanted == 0) {
    if (thread_index() == 0) shared.hits = range;
    sync_block();
    return;
  }
  if (range.wanted == selection.count) {
    sync_block();
#pragma unroll 1
    for (int32_t i = thread_index(); i < e.count; i += kFusedThreads) {
      if (e.list[i] != kGone) find_hit(e, room, i, shared);
    }
    range.all = range.wanted;
    range.base = shared.slot_base;
  } else {
    int found = 0;
    if (a.rank == PKV_RANK_GROUP) {
      found = exchange_histogram<4, kDim>(static_cast<uint32_t>(range.wanted));
    } else {
      sync_block();
    }
    const Cut& cut = shared.scan.cut;
    if (found > 0 && cut.bin < kWindowBins - 1 &&
        cut.before + cut.here <= static_cast<uint32_t>(a.mailbox.hit_capacity)) {
      range.all = static_cast<int32_t>(cut.before + cut.here);
      range.base = static_cast<int32_t>(cut.team_before + cut.team_here);
#pragma unroll 1
      for (int32_t i = thread_index(); i < e.count; i += kFusedThreads) {
        if (e.list[i] != kGone && score_bin(bound, e.scores[i]) <= cut.bin) {
          find_hit(e, room, i, shared);
        }
      }
    } else {
      range = find_exact_hits(e, room, range.wanted, shared);
    }
  }
  sync_block();
  range.own = shared.own_hits;
#pragma unroll 1
  for (int32_t i = thread_index(); i < range.own; i += kFusedThreads) {
    const int32_t mine = room.found()[i];
    int32_t before = 0;
#pragma unroll 1
    for (int32_t j = 0; j < range.own; ++j) before += room.found()[j] < mine ? 1 : 0;
    room.entry()[before] = mine;
  }
  if (thread_index() == 0) shared.hits = range;
  sync_block();
}

// To the team: the block's entries that may be hits.
PKV_DEVICE void post_hits(const BlockRow& at, const Team& team, const Entries& e,
                          const HitRoom& room, const HitRange& range) {
#pragma unroll 1
  for (int32_t i = thread_index(); i < range.own; i += kFusedThreads) {
    const int32_t entry = room.entry()[i];
    uint64_t* to = team.hits + 2 * (range.base + i);
    post(to, team.tag(), uint64_t{order_key(e.scores[entry])});
    post(to + 1, team.tag(), static_cast<uint64_t>(at.begin + (e.list[entry] & kPlaceMask)));
  }
}

// How many of those that may be hits of the row come before the one of this number. By one warp.
PKV_DEVICE int32_t hits_before(const HitRoom& room, const HitRange& range, int32_t number) {
  using Group = LaneGroup<32>;
  const uint32_t mine = room.order()[number];
  int32_t before = 0;
#pragma unroll 1
  for (int32_t j = Group::rank(); j < range.all; j += 32) {
    const uint32_t other = room.order()[j];
    if (other > mine || (other == mine && j < number)) ++before;
  }
  return Group::sum(before);
}

// Who is in, and the row's hits as results. All threads.
template <int kDim>
PKV_DEVICE void settle_hits(const FusedArgs& a, const BlockRow& at, const Team& team,
                            const HitRoom& room, const HitRange& range) {
  using Group = LaneGroup<32>;
#pragma unroll 1
  for (int32_t i = thread_index(); i < range.all; i += kFusedThreads) {
    uint64_t words[2];
    await_words(team.hits + 2 * i, team.tag(), words);
    room.order()[i] = static_cast<uint32_t>(words[0]);
    room.positions()[i] = static_cast<uint32_t>(words[1]);
  }
  sync_block();
#pragma unroll 1
  for (int32_t i = Group::index(); i < range.own; i += kFusedWarps) {
    const int32_t number = range.base + i;
    const int32_t before = hits_before(room, range, number);
    if (Group::rank() != 0) continue;
    const bool is_hit = before < range.wanted;
    room.place()[i] = is_hit ? before : -1;
    if (!is_hit) continue;
    a.positions[at.row * a.k + before] = static_cast<int32_t>(room.positions()[number]);
    if (a.scores != nullptr)
      a.scores[at.row * a.k + before] = value_of_order_key(room.order()[number]);
  }
  if (team.rank == 0) {
    if (thread_index() == 0) a.counts[at.row] = range.wanted;
#pragma unroll 1
    for (int32_t slot = range.wanted + thread_index(); slot < a.k; slot += kFusedThreads) {
      a.positions[at.row * a.k + slot] = -1;
      if (a.scores != nullptr) a.scores[at.row * a.k + slot] = minus_infinity();
    }
  }
  sync_block();
}

}  // namespace pkv::cuda
