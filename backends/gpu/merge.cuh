// Joins the partial results of a query head: tokens, sink, tail. docs/algorithm.md, section 8.
// Traffic: every slot's values once. Bounded; every sum in the order of the slots.
// Differs from cpu_ref: samples and sketched candidates come as sums in rotated space.
#pragma once

#include "backends/gpu/attend.cuh"
#include "backends/gpu/rotate.cuh"

namespace PKV_GPU_NS {

struct MergeArgs {
  CodecView codec;
  AttendSlots slots;
  Partials partials;
  TensorView output;         // [b, hq, dv]
  float* lse;                // [b, hq]; NULL: not wanted
  const float* sink_logits;  // [hq]; NULL: none
  const int32_t* bad;        // [rows]
  const int32_t* sequences;
  const int64_t* lengths;
  int32_t query_heads;
  int32_t group;
  int64_t heads;  // b * hq
  int32_t tail;   // PKV_TAIL_*
  int32_t sample_most;
  const float* rest_lse;       // [b, hq]
  const double* value_sums;    // [rows of the index, dv]
  const int64_t* good_counts;  // [rows of the index]
};

// What the samples of a head come to: v_hat = sum of values / sum.
struct SampleSums {
  float max;
  float sum;
  float squares;

  // 8: l, of all keys 1.
  PKV_DEVICE float trust(bool is_whole) const {
    if (sum == 0.0F) return 0.0F;
    if (is_whole) return 1.0F;
    const float N = sum * sum / squares;
    return N / (N + static_cast<float>(format::kSampleShrink));
  }
};

// The factors by which a head's parts go into its result.
struct HeadWeights {
  float max;      // of all logits
  float total;    // of all weights, in units of exp(max); 0: nothing to attend to
  float samples;  // of the samples' values, before exp(their max - samples_max)
  float samples_max;
  float mean;      // of v_mean
  float sketched;  // weight that the sketched values carry: that of mu_v
};

// Dynamic shared memory of merge_slots: dv floats, then what a head's slots left, then factors.
constexpr int64_t merge_bytes(int64_t dv, int64_t slots) {
  return gpu::round_up(4 * dv, 16) + slots * int64_t{sizeof(PartialStats) + sizeof(float)};
}

// Sums are short and every thread makes its own.
PKV_DEVICE HeadWeights weigh_parts(const MergeArgs& a, const PartialStats* stats, int64_t head,
                                   float sink, int64_t good_count, bool is_whole) {
  const int32_t token_slots = a.slots.dense + a.slots.rows;
  const int32_t sample_begin = token_slots + a.slots.candidates;
  const bool is_sketch = a.tail == PKV_TAIL_SKETCH;
  HeadWeights w = {};
  LogSum rest = LogSum::nothing();
  if (a.tail != PKV_TAIL_DROP) {
    rest.add(a.rest_lse[head]);
    for (int32_t u = token_slots; !is_sketch && u < sample_begin; ++u) {
      rest = both(rest, {stats[u].max, stats[u].sum});
    }
  }
  const float rest_logit = good_count > 0 ? rest.value() : minus_infinity();

  w.max = larger(sink, rest_logit);
  const int32_t own_slots = is_sketch ? sample_begin : token_slots;
  for (int32_t u = 0; u < own_slots; ++u) w.max = larger(w.max, stats[u].max);
  const float rest_weight = exp_below(rest_logit, w.max);
  w.total = exp_below(sink, w.max) + rest_weight;
  for (int32_t u = 0; u < own_slots; ++u) {
    const float weight = stats[u].sum * exp_below(stats[u].max, w.max);
    w.total += weight;
    if (u >= token_slots) w.sketched += weight;
  }

  SampleSums samples = {minus_infinity(), 0.0F, 0.0F};
  for (int32_t u = sample_begin; u < a.slots.all(); ++u) {
    samples.max = larger(samples.max, stats[u].max);
  }
  for (int32_t u = sample_begin; u < a.slots.all(); ++u) {
    const float factor = exp_below(stats[u].max, samples.max);
    samples.sum = fmadd(stats[u].sum, factor, samples.sum);
    samples.squares = fmadd(stats[u].squares, factor * factor, samples.squares);
  }
  const float l = samples.trust(is_whole);
  w.samples_max = samples.max;
  w.samples = samples.sum == 0.0F ? 0.0F : rest_weight * l / samples.sum;
  w.sketched += samples.sum == 0.0F ? 0.0F : rest_weight * l;
  w.mean = rest_weight * (1.0F - l);
  return w;
}

// sum_u factors[u] * values[u * dv + j] over slots [begin, end), some of them under way.
PKV_DEVICE float weighed_values(const float* factors, const float* values, int32_t begin,
                                int32_t end, int32_t dv, int32_t j) {
  float sum = 0.0F;
#pragma unroll 8
  for (int32_t u = begin; u < end; ++u) sum = fmadd(factors[u], values[int64_t{u} * dv + j], sum);
  return sum;
}

// Block: one query head at a time. Dynamic shared memory: merge_bytes.
template <class Traits>
PKV_KERNEL(Traits::kMergeThreads)
merge_slots(MergeArgs a) {
  PKV_DYNAMIC_SHARED(memory);
  const int32_t dv = a.codec.geometry.value_dim;
  const int32_t kv_heads = a.codec.geometry.kv_heads;
  const GroupVector rotated = {reinterpret_cast<float*>(memory), dv};
  auto* stats = reinterpret_cast<PartialStats*>(memory + merge_bytes(dv, 0));
  auto* factors = reinterpret_cast<float*>(stats + a.slots.all());
  const int32_t token_slots = a.slots.dense + a.slots.rows;
  const int32_t sample_begin = token_slots + a.slots.candidates;
  const bool is_sketch = a.tail == PKV_TAIL_SKETCH;
  const bool has_samples = a.slots.samples > 0;
  for (int64_t head = block_y(); head < a.heads; head += grid_y()) {
    const int64_t row = head / a.group;
    const RowIndex at = row_index(row, kv_heads);
    const auto query_head = static_cast<int32_t>(head % a.query_heads);
    std::byte* output = a.output.row(at.entry, query_head);
    if (a.bad[row] != 0) {
      for (int32_t j = thread_index(); j < dv; j += Traits::kMergeThreads) {
        store_element(a.output.dtype, output, j, 0.0F);
      }
      if (thread_index() == 0 && a.lse != nullptr) a.lse[head] = minus_infinity();
      continue;  // the whole block
    }

    const int64_t zone_row = int64_t{a.sequences[at.entry]} * kv_heads + at.head;
    const int64_t good_count = a.tail != PKV_TAIL_DROP ? a.good_counts[zone_row] : 0;
    const bool is_whole =
        is_sketch && format::samples(a.codec.geometry, a.lengths[at.entry], a.sample_most).is_all();
    const float sink = a.sink_logits != nullptr ? a.sink_logits[query_head] : minus_infinity();
    const float* values = a.partials.values + head * a.slots.all() * dv;
    for (int32_t u = thread_index(); u < a.slots.all(); u += Traits::kMergeThreads) {
      stats[u] = a.partials.stats[head * a.slots.all() + u];
    }
    sync_block();
    const HeadWeights w = weigh_parts(a, stats, head, sink, good_count, is_whole);
    for (int32_t u = thread_index(); u < a.slots.all(); u += Traits::kMergeThreads) {
      factors[u] = u < sample_begin ? exp_below(stats[u].max, w.max)
                                    : w.samples * exp_below(stats[u].max, w.samples_max);
    }
    sync_block();

    if (is_sketch || has_samples) {
      for (int32_t j = thread_index(); j < dv; j += Traits::kMergeThreads) {
        const int32_t begin = is_sketch ? token_slots : sample_begin;
        rotated.x[j] = weighed_values(factors, values, begin, a.slots.all(), dv, j);
      }
      sync_block();
      if (LaneGroup<32>::index() == 0) {
        unrotate(rotated, a.codec.value_plan, a.codec.params.value_signs_1,
                 a.codec.params.value_signs_2);
      }
      sync_block();
    }

    const float* mu_v = w.sketched != 0.0F ? a.codec.value_row(a.codec.params.value_center,
                                                               a.codec.set(at.entry), at.head)
                                           : nullptr;
    for (int32_t j = thread_index(); j < dv; j += Traits::kMergeThreads) {
      float sum = weighed_values(factors, values, 0, token_slots, dv, j);
      if (mu_v != nullptr) sum += fmadd(w.sketched, mu_v[j], rotated.x[j]);
      if (w.mean != 0.0F) {
        const float v_mean = fdiv_rn(static_cast<float>(a.value_sums[zone_row * dv + j]),
                                     static_cast<float>(good_count));
        sum = fmadd(w.mean, v_mean, sum);
      }
      store_element(a.output.dtype, output, j, w.total == 0.0F ? 0.0F : sum / w.total);
    }
    if (thread_index() == 0 && a.lse != nullptr) {
      a.lse[head] = w.total == 0.0F ? minus_infinity() : w.max + std::log(w.total);
    }
    sync_block();  // rotated, stats and factors are read
  }
}

}  // namespace PKV_GPU_NS
