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

// How many of `count` ascending numbers are less than `value`.
PKV_APART inline int32_t count_below(const int32_t* numbers, int32_t count, int32_t value) {
  return static_cast<int32_t>(
      lower_bound(0, count, value, [&](int64_t j) { return int64_t{numbers[j]}; }));
}

// Candidates and estimates as results, and the mass of those that may be no hits, as far as it is
// known now: shared.warp_mass. All threads.
template <int kDim, int kTiles>
PKV_DEVICE void write_candidates(const FusedArgs& a, const BlockRow& at, const Team& team,
                                 const Selection& selection, const Entries& e,
                                 FusedShared<kDim>& shared) {
  using Group = LaneGroup<32>;
  constexpr int kHeads = 4 * kTiles;
  int32_t* candidates = a.candidates + at.row * a.candidates_stride;
  float* estimates =
      a.estimates == nullptr ? nullptr : a.estimates + at.row * a.group * a.candidates_stride;
  const int32_t dropped = shared.dropped_count;
  float mass[kHeads] = {};
#pragma unroll 1
  for (int32_t i = thread_index(); i < e.count; i += kFusedThreads) {
    const uint32_t word = e.list[i];
    if (word == kGone) continue;
    int32_t slot = shared.slot_base + i;
    // Entries of ties that did not come in leave no gap.
    if (dropped > 0) slot -= count_below(shared.dropped, dropped, i);
    candidates[slot] = static_cast<int32_t>(at.begin + (word & kPlaceMask));
    const bool counts = (word & kHitFlag) == 0;
#pragma unroll
    for (int g = 0; g < kHeads; ++g) {
      if (g >= a.group) break;
      const float est = e.estimates[i * a.group + g];
      if (estimates != nullptr) estimates[g * a.candidates_stride + slot] = est;
      if (counts) mass[g] += exp_below(a.logit(est), shared.lse[g]);
    }
  }
  if (a.tail != PKV_TAIL_DROP) {
#pragma unroll
    for (int g = 0; g < kHeads; ++g) {
      mass[g] = Group::sum(mass[g]);
      if (Group::rank() == g) shared.warp_mass[Group::index()][g] = mass[g];
    }
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
#pragma unroll 1
  for (int64_t i = at.samples.count + thread_index(); i < a.tail_samples; i += kFusedThreads) {
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
                            FusedShared<kDim>& shared) {
  JoinRoom& room = shared.join;
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
        if (hits.place()[i] >= 0 && (e.list[hits.entry()[i]] & kPlaceMask) == place) is_out = true;
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

// The sums over samples of all heads of the block, into shared.samples and shared.rotated. All
// threads.
template <int kDim>
PKV_APART void sum_all_samples(const FusedArgs& a, const BlockRow& at, const Entries e,
                               const HitRoom hits, int32_t own_hits, float* values,
                               FusedShared<kDim>& shared) {
#pragma unroll 1
  for (int32_t first = 0; first < a.group; first += kHeadsAtOnce) {
    sum_samples(a, at, e, hits, own_hits, first, values, shared);
    if (thread_index() < kHeadsAtOnce && first + thread_index() < kFusedHeads) {
      shared.samples[first + thread_index()] = shared.join.all[thread_index()];
    }
    sync_block();
  }
}

// What the block knows of the tail, with the mass of its candidates that are no hits. With tail =
// mean that is all: what blocks add to their partial outputs adds up. Else it goes to the team. All
// threads of warps below G; shared.warp_mass is there.
template <int kDim>
PKV_DEVICE void settle_tail(const FusedArgs& a, const Team& team, const Entries& e,
                            const HitRoom& hits, const HitRange& range, FusedShared<kDim>& shared) {
  using Group = LaneGroup<32>;
  const int g = Group::index();
  if (g >= a.group) return;
  const float lse = shared.lse[g];
  float mass = Group::rank() < kFusedWarps ? shared.warp_mass[Group::rank()][g] : 0.0F;
#pragma unroll 1
  for (int32_t i = Group::rank(); i < range.own; i += 32) {
    if (hits.place()[i] >= 0) continue;
    mass += exp_below(a.logit(e.estimates[hits.entry()[i] * a.group + g]), lse);
  }
  mass = Group::sum(mass);
  if (Group::rank() != 0) return;
  LogSum rest = {mass == 0.0F ? minus_infinity() : lse, mass};
  if (a.tail == PKV_TAIL_MEAN) {
    if (team.rank == 0) rest.add(shared.rest[g]);
    shared.tail[g] = {shared.good_count > 0 ? rest.value() : minus_infinity(), 0.0F, 0.0F, 0.0F};
    return;
  }
  uint64_t* to = team.own(Mailbox::kTail + 5 * g);
  const uint64_t tag = team.tag();
  post(to, tag, rest.max);
  post(to + 1, tag, rest.sum);
  post(to + 2, tag, shared.samples[g].max);
  post(to + 3, tag, shared.samples[g].sum);
  post(to + 4, tag, shared.samples[g].squares);
}

// What the team's blocks say of a tail of samples, into shared.tail. All threads.
template <int kDim>
PKV_APART void await_tail(const FusedArgs& a, FusedShared<kDim>& shared) {
  const Team& team = shared.team;
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
    const LogSum mass = sum_lanes(is_there ? LogSum{mine[0], mine[1]} : LogSum::nothing());
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
      shared.tail[g] = {shared.good_count > 0 ? rest.value() : minus_infinity(),
                        samples.trust(false), most, samples.sum};
    }
  }
  sync_block();
}

}  // namespace pkv::cuda
