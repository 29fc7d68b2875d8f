// How the blocks of a team join: what the warps of a block have found, with the tail, goes to the
// team, and every block writes its share of the outputs. docs/algorithm.md, section 8. Bounded;
// every sum in one order.
#pragma once

#include "backends/cuda/fused_attend.cuh"

namespace pkv::cuda {

// What the warps have found for heads `first` .. joins, with the tail's share of the block, and
// goes to the team. All threads; `values`: floats [kFusedWarps, kHeadsAtOnce, kDim].
template <int kDim, bool kIsWide>
PKV_DEVICE void post_partial(const FusedArgs& a, const BlockRow& at, const Team& team,
                             const WarpAttention<kDim, kIsWide>& attention, int32_t first,
                             float* values, FusedShared<kDim>& shared) {
  using Group = LaneGroup<32>;
  constexpr int kElements = kDim / 32;
  const auto& state = attention.state;
  const int32_t dv = a.codec.geometry.value_dim;
  join_stats(state.max, state.sum, state.squares, shared.join);
#pragma unroll
  for (int h = 0; h < kHeadsAtOnce; ++h) {
    float* to = values + (Group::index() * kHeadsAtOnce + h) * kDim + kElements * Group::rank();
    const float factor = shared.join.factor[Group::index()][h];
#pragma unroll
    for (int i = 0; i < kElements; ++i) to[i] = state.out[h][i] * factor;
  }
  sync_block();
  const uint64_t tag = team.tag();
  const bool is_first = team.rank == 0;
  const bool has_tail = a.tail != PKV_TAIL_DROP;
#pragma unroll 1
  for (int32_t i = thread_index(); i < kHeadsAtOnce * kDim; i += kFusedThreads) {
    const int32_t h = i / kDim;
    const int32_t j = i % kDim;
    const int32_t g = first + h;
    if (g >= a.group || j >= dv) continue;
    float sum = 0.0F;
#pragma unroll
    for (int warp = 0; warp < kFusedWarps; ++warp) sum += values[warp * kHeadsAtOnce * kDim + i];
    const PartialStats& all = shared.join.all[h];
    float most = all.max;
    float rest = minus_infinity();
    float samples = minus_infinity();  // the logit of the block's samples' values
    float sink = minus_infinity();
    TailHead tail = {rest, 0.0F, rest, 0.0F};
    if (has_tail) {
      tail = shared.tail[g];
      if (tail.trust > 0.0F && shared.samples[g].sum > 0.0F) {
        samples = tail.rest + std::log(tail.trust / tail.samples_sum) + shared.samples[g].max -
                  tail.samples_max;
      }
      if (is_first || a.tail == PKV_TAIL_MEAN) rest = tail.rest;
    }
    if (is_first && a.sink_logits != nullptr) sink = a.sink_logits[int64_t{at.head} * a.group + g];
    most = larger(larger(most, samples), larger(rest, sink));
    sum *= exp_below(all.max, most);
    if (samples != minus_infinity()) {
      sum = fmadd(exp_below(samples, most), shared.rotated[g][j], sum);
    }
    if (rest != minus_infinity()) {
      const float weight = exp_below(rest, most);
      sum = fmadd(weight * (1.0F - tail.trust), shared.mean(j), sum);
      if (tail.trust > 0.0F) {
        const float* mu_v =
            a.codec.value_row(a.codec.params.value_center, a.codec.set(at.entry), at.head);
        sum = fmadd(weight * tail.trust, mu_v[j], sum);
      }
    }
    uint64_t* to = team.own(Mailbox::kPartial + g * (dv + 2));
    post(to + 2 + j, tag, sum);
    if (j != 0) continue;
    post(to, tag, most);
    post(to + 1, tag,
         all.sum * exp_below(all.max, most) + exp_below(rest, most) + exp_below(sink, most));
  }
}

// The block's share of the outputs. kFusedTeam lanes have an output, each a block's part of it; a
// warp stays together. All threads.
PKV_DEVICE void write_outputs(const FusedArgs& a, const BlockRow& at, const Team& team) {
  using Group = LaneGroup<32>;
  constexpr int kAtOnce = kFusedThreads / kFusedTeam;
  const int32_t dv = a.codec.geometry.value_dim;
  const Share share = share_of(a.group * dv, team.rank, team.size);
  const uint64_t tag = team.tag();
  const int c = thread_index() % kFusedTeam;
  const auto end = static_cast<int32_t>(share.end);
#pragma unroll 1
  for (auto base = static_cast<int32_t>(share.begin); base < end; base += kAtOnce) {
    const int32_t output = base + thread_index() / kFusedTeam;
    const uint32_t g = static_cast<uint32_t>(output) / static_cast<uint32_t>(dv);
    const int32_t j = output - static_cast<int32_t>(g) * dv;
    float value = 0.0F;
    float max = minus_infinity();
    float sum = 0.0F;
    if (output < end && c < team.size) {
      const uint64_t* from = team.of(c, Mailbox::kPartial + static_cast<int32_t>(g) * (dv + 2));
      uint64_t stats[2];
      await_words(from, tag, stats);
      max = std::bit_cast<float>(static_cast<uint32_t>(stats[0]));
      sum = std::bit_cast<float>(static_cast<uint32_t>(stats[1]));
      value = await_float(from + 2 + j, tag);
    }
    __syncwarp();  // lanes come at different times
    float most = max;
#pragma unroll
    for (int bits = 1; bits < kFusedTeam; bits *= 2) {
      most = larger(most, Group::shuffle_xor(most, bits));
    }
    const float factor = exp_below(max, most);
    sum *= factor;
    value *= factor;
#pragma unroll
    for (int bits = 1; bits < kFusedTeam; bits *= 2) {
      sum += Group::shuffle_xor(sum, bits);
      value += Group::shuffle_xor(value, bits);
    }
    if (output >= end || c != 0) continue;
    const int64_t query_head = int64_t{at.head} * a.group + g;
    store_element(a.output.dtype, a.output.row(at.entry, query_head), j,
                  sum == 0.0F ? 0.0F : value / sum);
    if (j == 0 && a.lse != nullptr) {
      a.lse[at.row * a.group + g] = sum == 0.0F ? minus_infinity() : most + flog(sum);
    }
  }
}

}  // namespace pkv::cuda
