// Ties of the vote that are settled while records travel, and the sums of the estimates'
// exponentials over the team. docs/algorithm.md, sections 5, 6.2 and 6.4. Bounded: the sums; each
// in one order.
#pragma once

#include "backends/cuda/fused_rerank.cuh"

namespace pkv::cuda {

// Which of the block's ties come in. All threads.
template <int kDim>
PKV_DEVICE void settle_ties(const Team& team, const Selection& selection, const Entries& e,
                            FusedShared<kDim>& shared) {
  using Group = LaneGroup<32>;
  if (selection.ties == 0) return;
#pragma unroll 1
  for (auto i = static_cast<uint32_t>(thread_index()); i < selection.ties; i += kFusedThreads) {
    shared.ties[i] = static_cast<uint32_t>(await(team.ties + i, team.tag()));
  }
  sync_block();
  const int32_t own = shared.own_ties;
  // A warp's lanes count for one tie.
#pragma unroll 1
  for (int32_t i = Group::index(); i < own; i += kFusedWarps) {
    const uint32_t number = selection.tie_base + static_cast<uint32_t>(i);
    const uint32_t mine = shared.ties[number];
    uint32_t before = 0;
#pragma unroll 1
    for (auto j = static_cast<uint32_t>(Group::rank()); j < selection.ties; j += 32) {
      const uint32_t other = shared.ties[j];
      if (other > mine || (other == mine && j < number)) ++before;
    }
    before = Group::sum(before);
    if (Group::rank() != 0) continue;
    const int32_t entry = shared.tie_entry[i];
    if (before < selection.ties_wanted) {
      shared.tie_entry[i] = static_cast<int32_t>(static_cast<uint32_t>(entry) | kTieFlag);
      e.list[entry] &= ~kTieFlag;
    }
  }
  sync_block();
  if (Group::index() == 0) {
    int32_t dropped = 0;
#pragma unroll 1
    for (int32_t first = 0; first < own; first += 32) {
      const int32_t i = first + Group::rank();
      const bool is_out = i < own && shared.tie_entry[i] >= 0;
      const uint32_t out = Group::ballot(is_out);
      if (is_out) {
        shared.dropped[dropped + Group::rank_in(out)] = shared.tie_entry[i];
      }
      dropped += Group::count_bits(out);
    }
    if (Group::rank() == 0) shared.dropped_count = dropped;
  }
#pragma unroll 1
  for (int32_t s = thread_index(); s < e.sample_count; s += kFusedThreads) {
    const uint32_t word = e.samples[s];
    if ((word & kTieFlag) == 0) continue;
    uint32_t settled = word & kPlaceMask;
#pragma unroll 1
    for (int32_t i = 0; i < own; ++i) {
      const auto entry = static_cast<uint32_t>(shared.tie_entry[i]);
      if ((entry & kTieFlag) == 0) continue;
      if ((e.list[entry & ~kTieFlag] & kPlaceMask) == settled) settled |= kSampleTaken;
    }
    e.samples[s] = settled;
  }
  sync_block();
#pragma unroll 1
  for (int32_t i = thread_index(); i < shared.dropped_count; i += kFusedThreads) {
    e.list[shared.dropped[i]] = kGone;
  }
}

// The row's lse of each head, its rest, the largest score there may be, and where the block's
// candidates begin. All threads.
template <int kDim>
PKV_DEVICE void exchange_sums(const FusedArgs& a, const BlockRow& at, const Team& team,
                              const Selection& selection, const Entries& e,
                              FusedShared<kDim>& shared) {
  using Group = LaneGroup<32>;
  const int warp = Group::index();
  const int32_t G = a.group;
  const int32_t words = 4 * G + 2;
  const uint64_t tag = team.tag();
  // A warp has a head's candidates, or its samples that are none.
  const bool is_samples = warp >= G;
  const int g = is_samples ? warp - G : warp;
  const bool has_part = warp < 2 * G;
  if (has_part) {
    LogSum sum = LogSum::nothing();
    if (!is_samples && Group::rank() < kFusedWarps) sum = shared.warp_sums[Group::rank()][g];
    int32_t seen = 0;
    const int32_t count = is_samples ? e.sample_count : shared.own_ties;
#pragma unroll 1
    for (int32_t i = Group::rank(); i < count; i += 32) {
      const auto tie = static_cast<uint32_t>(shared.tie_entry[is_samples ? 0 : i]);
      const bool counts = is_samples ? (e.samples[i] & kSampleTaken) == 0 : (tie & kTieFlag) != 0;
      if (!counts) continue;
      ++seen;
      const float* estimates =
          is_samples ? e.sample_estimates + i * G : e.estimates + int64_t{tie & ~kTieFlag} * G;
      const float est = estimates[g];
      if (est == est) sum.add(a.logit(est));
    }
    sum = sum_lanes(sum);
    seen = Group::sum(seen);
    if (Group::rank() == 0) {
      uint64_t* to = team.own(Mailbox::kStats + 4 * g + (is_samples ? 2 : 0));
      post(to, tag, sum.max);
      post(to + 1, tag, sum.sum);
      // How many ties came in, and samples are no candidates.
      if (g == 0) {
        post(team.own(Mailbox::kStats + 4 * G + (is_samples ? 1 : 0)), tag,
             static_cast<float>(seen));
      }
    }
  }
#pragma unroll 1
  for (int c = warp; c < team.size; c += kFusedWarps) {
#pragma unroll 1
    for (int word = Group::rank(); word < words; word += 32) {
      shared.stats[c][word] = await_float(team.of(c, Mailbox::kStats + word), tag);
    }
  }
  sync_block();
  const bool is_there = Group::rank() < team.size;
  const float* mine = shared.stats[is_there ? Group::rank() : 0];
  if (has_part) {
    const float* part = mine + 4 * g + (is_samples ? 2 : 0);
    const LogSum sum = sum_lanes(is_there ? LogSum{part[0], part[1]} : LogSum::nothing());
    const bool counts = is_samples ? is_there : Group::rank() < team.rank;
    const float count = Group::sum(counts ? mine[4 * G + (is_samples ? 1 : 0)] : 0.0F);
    const float value = sum.value();
    if (Group::rank() == 0 && is_samples) {
      const auto R = static_cast<float>(at.n - selection.count);
      shared.rest[g] = value == minus_infinity() ? value : value + flog(R / count);
    } else if (Group::rank() == 0) {
      shared.lse[g] = value;
      shared.top[g] = sum.max - value;
      shared.slot_base = static_cast<int32_t>(selection.slot_base) + static_cast<int32_t>(count);
    }
  }
  sync_block();
}

}  // namespace pkv::cuda
