// What the zone beyond the hits contributes: the mass of candidates, the samples' values, and how
// far these are trusted. docs/algorithm.md, sections 6.4 and 8. Bounded; every sum in one order.
// Sums of sketched values are un-rotated in each block, so that blocks join plain vectors.
#pragma once

#include "backends/cuda/fused_hits.cuh"
#include "backends/gpu/merge.cuh"
#include "backends/gpu/tail.cuh"

namespace pkv::cuda {

// All threads; lane 0's statistics count. Behind it `factor` and `all` are there.
PKV_DEVICE void join_stats(const float (&max)[kHeadsAtOnce], const float (&sum)[kHeadsAtOnce],
                           const float (&squares)[kHeadsAtOnce], JoinRoom& room) {
  using Group = LaneGroup<32>;
  sync_block();  // the room is free
  if (Group::rank() == 0) {
#pragma unroll
    for (int h = 0; h < kHeadsAtOnce; ++h) {
      room.warp[Group::index()][h] = {max[h], sum[h], squares[h], 0.0F};
    }
  }
  sync_block();
  if (Group::index() < kHeadsAtOnce) {
    const int h = Group::index();
    PartialStats one = {minus_infinity(), 0.0F, 0.0F, 0.0F};
    if (Group::rank() < kFusedWarps) one = room.warp[Group::rank()][h];
    const float most = Group::max(one.max);
    const float factor = exp_below(one.max, most);
    const float total = Group::sum(one.sum * factor);
    const float total_squares = Group::sum(one.squares * factor * factor);
    if (Group::rank() < kFusedWarps) room.factor[Group::rank()][h] = factor;
    if (Group::rank() == 0) room.all[h] = {most, total, total_squares, 0.0F};
  }
  sync_block();
}

// Candidates and estimates as results, and the mass of those that may be no hits, as far as it is
// known now: shared.warp_sums. All threads.
template <int kDim>
PKV_DEVICE void write_candidates(const FusedArgs& a, const BlockRow& at, const Team& team,
                                 const Selection& selection, const Entries& e,
                                 FusedShared<kDim>& shared) {
  const bool has_mass = a.tail != PKV_TAIL_DROP;
  using Group = LaneGroup<32>;
  int32_t* candidates = a.candidates + at.row * a.candidates_stride;
  float* estimates =
      a.estimates == nullptr ? nullptr : a.estimates + at.row * a.group * a.candidates_stride;
  const int32_t dropped = shared.dropped_count;
  // Entries of ties that did not come in leave no gap.
  const auto slot_of = [&](int32_t i) {
    int64_t slot = int64_t{shared.slot_base} + i;
    if (dropped > 0) {
      slot -= lower_bound(0, dropped, i, [&](int64_t j) { return int64_t{shared.dropped[j]}; });
    }
    return slot;
  };
#pragma unroll 1
  for (int32_t g = -1; g < a.group; ++g) {
    if (g >= 0 && estimates == nullptr && !has_mass) break;
    LogSum sum = LogSum::nothing();
#pragma unroll 1
    for (int32_t i = thread_index(); i < e.count; i += kFusedThreads) {
      const uint32_t word = e.list[i];
      if (word == kGone) continue;
      if (g < 0) {
        candidates[slot_of(i)] = static_cast<int32_t>(at.begin + (word & kPlaceMask));
        continue;
      }
      const float est = e.estimates[int64_t{i} * a.group + g];
      if (estimates != nullptr) estimates[g * a.candidates_stride + slot_of(i)] = est;
      if ((word & kHitFlag) == 0) sum.add(a.logit(est));
    }
    if (g < 0 || !has_mass) continue;
    sum = sum_lanes(sum);
    if (Group::rank() == 0) shared.warp_sums[Group::index()][g] = sum;
  }
  if (team.rank != 0) return;
  if (thread_index() == 0) a.candidate_counts[at.row] = selection.count;
#pragma unroll 1
  for (int64_t slot = selection.count + thread_index(); slot < a.candidates_stride;
       slot += kFusedThreads) {
    candidates[slot] = -1;
  }
}

// The samples' estimates and rest_lse as results.
template <int kDim>
PKV_DEVICE void write_samples(const FusedArgs& a, const BlockRow& at, const Team& team,
                              const Entries& e, const FusedShared<kDim>& shared) {
  if (a.tail_samples == 0) return;
  if (a.sample_estimates != nullptr) {
    float* to = a.sample_estimates + at.row * a.group * a.tail_samples;
#pragma unroll 1
    for (int32_t i = thread_index(); i < e.sample_count * a.group; i += kFusedThreads) {
      const int32_t s = i / a.group;
      const int32_t g = i - s * a.group;
      to[int64_t{g} * a.tail_samples + e.first_sample + s] = e.sample_estimates[i];
    }
  }
  if (team.rank != 0) return;
  if (a.rest_lse != nullptr && thread_index() < a.group) {
    a.rest_lse[at.row * a.group + thread_index()] = shared.rest[thread_index()];
  }
  if (a.sample_estimates == nullptr) return;
  const int64_t count = format::samples(a.codec.geometry, at.n, a.tail_samples).count;
#pragma unroll 1
  for (int64_t i = count + thread_index(); i < a.tail_samples; i += kFusedThreads) {
#pragma unroll 1
    for (int32_t g = 0; g < a.group; ++g) {
      a.sample_estimates[(at.row * a.group + g) * a.tail_samples + i] = quiet_nan();
    }
  }
}

// The sums over the block's good samples that were not fetched, heads `first` .. : statistics to
// room.all, un-rotated values to shared.rotated. All threads; `values`: floats
// [kFusedWarps, kHeadsAtOnce, kDim].
template <int kDim>
PKV_DEVICE void sum_samples(const FusedArgs& a, const BlockRow& at, const Entries& e,
                            const HitRoom& hits, int32_t own_hits, int32_t first, float* values,
                            JoinRoom& room, FusedShared<kDim>& shared) {
  using Shape = AttendShape<kDim / 8, 1, kHeadsAtOnce>;
  using Lanes = LaneGroup<kDim / 8>;
  using Group = LaneGroup<32>;
  const int32_t dv = a.codec.geometry.value_dim;
  const int32_t bits = a.codec.geometry.sketch_bits;
  Softmax<Shape> state;
  state.clear();
#pragma unroll 1
  for (int32_t s = Lanes::index(); s < e.sample_count; s += Lanes::count()) {
    const uint32_t word = e.samples[s];
    const uint32_t place = word & kPlaceMask;
    bool is_out = false;
    if ((word & kSampleTaken) != 0) {
#pragma unroll 1
      for (int32_t i = 0; i < own_hits; ++i) {
        if (hits.place[i] >= 0 && (e.list[hits.entry[i]] & kPlaceMask) == place) is_out = true;
      }
    }
    if (is_out) continue;
    const KeySlot slot = key_slot(a.store, at.records, at.begin + place);
    float weight[kHeadsAtOnce];
    bool is_there = false;
#pragma unroll
    for (int h = 0; h < kHeadsAtOnce; ++h) {
      weight[h] = 0.0F;
      if (first + h >= a.group) continue;
      const float est = e.sample_estimates[s * a.group + first + h];
      if (est != est) continue;
      const float logit = a.logit(est);
      state.raise(h, logit);
      weight[h] = state.weigh(h, logit);
      is_there = true;
    }
    const int j = Shape::begin(0);
    if (!is_there || j >= dv) continue;  // a bad key's factor is NaN
    const float factor = format::bf16_to_float(*slot.sketch_factor());
    float x[8];
    load_sketch8(slot, bits, j / 8, x);
#pragma unroll
    for (int h = 0; h < kHeadsAtOnce; ++h) state.add8(h, 0, weight[h] * factor, x);
  }
  // The runs of lanes of a warp join first.
#pragma unroll
  for (int step = kDim / 8; step < 32; step *= 2) {
#pragma unroll
    for (int h = 0; h < kHeadsAtOnce; ++h) {
      const float most = larger(state.max[h], Group::shuffle_xor(state.max[h], step));
      const float factor = exp_below(state.max[h], most);
      state.max[h] = most;
      state.sum[h] *= factor;
      state.sum[h] += Group::shuffle_xor(state.sum[h], step);
      state.squares[h] *= factor * factor;
      state.squares[h] += Group::shuffle_xor(state.squares[h], step);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        state.out[h][i] *= factor;
        state.out[h][i] += Group::shuffle_xor(state.out[h][i], step);
      }
    }
  }
  join_stats(state.max, state.sum, state.squares, room);
  if (Group::rank() < kDim / 8) {
#pragma unroll
    for (int h = 0; h < kHeadsAtOnce; ++h) {
      float* to = values + (Group::index() * kHeadsAtOnce + h) * kDim + 8 * Group::rank();
      const float factor = room.factor[Group::index()][h];
#pragma unroll
      for (int i = 0; i < 8; ++i) to[i] = state.out[h][i] * factor;
    }
  }
  sync_block();
#pragma unroll 1
  for (int32_t i = thread_index(); i < kHeadsAtOnce * kDim; i += kFusedThreads) {
    float sum = 0.0F;
#pragma unroll
    for (int warp = 0; warp < kFusedWarps; ++warp) sum += values[warp * kHeadsAtOnce * kDim + i];
    if (first + i / kDim < kFusedHeads) shared.rotated[first + i / kDim][i % kDim] = sum;
  }
  sync_block();
  if (Group::index() < kHeadsAtOnce && first + Group::index() < a.group) {
    const GroupVector v = {shared.rotated[first + Group::index()], dv};
    unrotate(v, a.codec.value_plan, a.codec.params.value_signs_1, a.codec.params.value_signs_2);
  }
}

// Mass and samples of the block to the team. All threads of warps below G.
template <int kDim>
PKV_DEVICE void post_tail(const FusedArgs& a, const Team& team, const Entries& e,
                          const HitRoom& hits, const HitRange& range, const PartialStats* samples,
                          FusedShared<kDim>& shared) {
  using Group = LaneGroup<32>;
  const int g = Group::index();
  if (g >= a.group) return;
  LogSum sum = LogSum::nothing();
  if (Group::rank() < kFusedWarps) sum = shared.warp_sums[Group::rank()][g];
#pragma unroll 1
  for (int32_t i = Group::rank(); i < range.own; i += 32) {
    if (hits.place[i] >= 0) continue;
    sum.add(a.logit(e.estimates[int64_t{hits.entry[i]} * a.group + g]));
  }
  sum = sum_lanes(sum);
  if (Group::rank() != 0) return;
  uint64_t* to = team.own(Mailbox::kTail + 5 * g);
  const uint64_t tag = team.tag();
  post(to, tag, sum.max);
  post(to + 1, tag, sum.sum);
  post(to + 2, tag, samples[g].max);
  post(to + 3, tag, samples[g].sum);
  post(to + 4, tag, samples[g].squares);
}

// What the team's blocks say of the tail, into shared.tail. All threads.
template <int kDim>
PKV_DEVICE void await_tail(const FusedArgs& a, const BlockRow& at, const Team& team,
                           FusedShared<kDim>& shared) {
  using Group = LaneGroup<32>;
  const int32_t words = 5 * a.group;
#pragma unroll 1
  for (int32_t i = thread_index(); i < team.size * words; i += kFusedThreads) {
    const int32_t c = i / words;
    const int32_t word = i - c * words;
    shared.stats[c][word] = await_float(team.of(c, Mailbox::kTail + word), team.tag());
  }
  sync_block();
  const int g = Group::index();
  if (g < a.group) {
    const bool is_there = Group::rank() < team.size;
    const float* mine = shared.stats[is_there ? Group::rank() : 0] + 5 * g;
    LogSum mass = is_there ? LogSum{mine[0], mine[1]} : LogSum::nothing();
    mass = sum_lanes(mass);
    SampleSums samples = {is_there ? mine[2] : minus_infinity(), is_there ? mine[3] : 0.0F,
                          is_there ? mine[4] : 0.0F};
    const float most = Group::max(samples.max);
    const float factor = exp_below(samples.max, most);
    samples.sum = Group::sum(samples.sum * factor);
    samples.squares = Group::sum(samples.squares * factor * factor);
    if (Group::rank() == 0) {
      LogSum rest = LogSum::nothing();
      rest.add(shared.rest[g]);
      rest = both(rest, mass);
      const int64_t zone_row = at.sequence * a.codec.geometry.kv_heads + at.head;
      const bool has_values = a.good_counts[zone_row] > 0;
      shared.tail[g] = {has_values ? rest.value() : minus_infinity(), samples.trust(false), most,
                        samples.sum};
    }
  }
  sync_block();
}

}  // namespace pkv::cuda
