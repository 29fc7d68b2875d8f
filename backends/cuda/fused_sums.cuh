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
    if (Group::rank() == 0) {
      shared.dropped_count = dropped;
      shared.own_chosen = own - dropped;
    }
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
  if (warp < G) {
    LogSum sum = LogSum::nothing();
    if (Group::rank() < kFusedWarps) sum = shared.warp_sums[Group::rank()][warp];
#pragma unroll 1
    for (int32_t i = Group::rank(); i < shared.own_ties; i += 32) {
      const auto entry = static_cast<uint32_t>(shared.tie_entry[i]);
      if ((entry & kTieFlag) == 0) continue;
      sum.add(a.logit(e.estimates[int64_t{entry & ~kTieFlag} * G + warp]));
    }
    sum = sum_lanes(sum);
    if (Group::rank() == 0) {
      post(team.own(Mailbox::kStats + 4 * warp), tag, sum.max);
      post(team.own(Mailbox::kStats + 4 * warp + 1), tag, sum.sum);
    }
  } else if (warp < 2 * G) {
    const int g = warp - G;
    LogSum sum = LogSum::nothing();
    int32_t seen = 0;
#pragma unroll 1
    for (int32_t s = Group::rank(); s < e.sample_count; s += 32) {
      if ((e.samples[s] & kSampleTaken) != 0) continue;
      ++seen;
      const float est = e.sample_estimates[s * G + g];
      if (est == est) sum.add(a.logit(est));
    }
    sum = sum_lanes(sum);
    seen = Group::sum(seen);
    if (Group::rank() == 0) {
      post(team.own(Mailbox::kStats + 4 * g + 2), tag, sum.max);
      post(team.own(Mailbox::kStats + 4 * g + 3), tag, sum.sum);
      if (g == 0) {
        post(team.own(Mailbox::kStats + 4 * G), tag, static_cast<float>(shared.own_chosen));
        post(team.own(Mailbox::kStats + 4 * G + 1), tag, static_cast<float>(seen));
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
  if (warp < G) {
    LogSum sum = is_there ? LogSum{mine[4 * warp], mine[4 * warp + 1]} : LogSum::nothing();
    sum = sum_lanes(sum);
    if (Group::rank() == 0) {
      shared.lse[warp] = sum.value();
      shared.top[warp] = sum.max - sum.value();
    }
  } else if (warp < 2 * G) {
    const int g = warp - G;
    LogSum sum = is_there ? LogSum{mine[4 * g + 2], mine[4 * g + 3]} : LogSum::nothing();
    const float seen = Group::sum(is_there ? mine[4 * G + 1] : 0.0F);
    const float value = sum_lanes(sum).value();
    const float before = Group::sum(Group::rank() < team.rank ? mine[4 * G] : 0.0F);
    if (Group::rank() == 0) {
      const auto R = static_cast<float>(at.n - selection.count);
      shared.rest[g] = value == minus_infinity() ? value : value + std::log(R / seen);
      shared.slot_base = static_cast<int32_t>(selection.slot_base) + static_cast<int32_t>(before);
    }
  }
  sync_block();
}

}  // namespace pkv::cuda
