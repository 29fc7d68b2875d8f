// What is a block's of a row: keys, samples, dense tokens. By one warp each, before the scan.
#pragma once

#include "backends/cuda/fused_shared.cuh"
#include "core/format/candidates.h"

namespace pkv::cuda {

// A 64-bit quotient; most are short divisions.
PKV_DEVICE int64_t quotient(int64_t value, int32_t divisor) {
  if (value <= UINT32_MAX) return static_cast<uint32_t>(value) / static_cast<uint32_t>(divisor);
  return value / divisor;
}

// Samples::position, i below 2^16.
PKV_DEVICE int64_t sample_position(const format::Samples& samples, int32_t i) {
  return samples.stride * quotient(i * samples.steps, static_cast<int32_t>(samples.count));
}

// The least i whose sample lies at `position` or behind it: i * steps / count * stride >= position.
PKV_DEVICE int32_t sample_from(const format::Samples& samples, int64_t position) {
  if (samples.steps == 0) return 0;
  const int64_t step =
      quotient(position + samples.stride - 1, static_cast<int32_t>(samples.stride));
  const int64_t i =
      quotient(step * samples.count + samples.steps - 1, static_cast<int32_t>(samples.steps));
  return static_cast<int32_t>(i < samples.count ? i : samples.count);
}

// Keys of the row; the block's first, and how many it has.
struct KeyRange {
  int64_t n;
  int64_t begin;
  int32_t length;
};
// What the scan reads first goes into L2, by one thread; fused_scan.cuh.
template <int kDim>
PKV_DEVICE void prefetch_scan(const FusedArgs& a, const KeyRange& keys,
                              const format::StoreRow& records);

// Entry and KV head of a row, below 2^31.
PKV_DEVICE RowIndex short_row_index(int64_t row, int32_t kv_heads) {
  const auto all = static_cast<uint32_t>(kv_heads);
  const uint32_t entry = static_cast<uint32_t>(row) / all;
  return {entry, static_cast<int32_t>(static_cast<uint32_t>(row) - entry * all)};
}

PKV_DEVICE KeyRange key_range(const FusedArgs& a, int64_t entry, int32_t rank) {
  KeyRange r{};
  r.n = a.lengths[entry];  // below 2^31
  const auto all = static_cast<uint32_t>(r.n);
  const auto team = static_cast<uint32_t>(a.team);
  const uint32_t per = ((all + team - 1) / team + kUnitKeys - 1) / kUnitKeys * kUnitKeys;
  const uint64_t begin = uint64_t{per} * static_cast<uint32_t>(rank);
  r.begin = static_cast<int64_t>(begin < all ? begin : all);
  const int64_t left = r.n - r.begin;
  r.length = static_cast<int32_t>(left < per ? left : per);
  return r;
}

// What is the block's of a row, by three warps; each finds a part of shared.at.
enum class RowPart { kSamples, kDense, kKeys };

// Its keys; by one thread.
template <int kDim>
PKV_DEVICE void find_keys(const FusedArgs& a, int64_t row, const RowIndex& index,
                          const KeyRange& keys, int64_t sequence, FusedShared<kDim>& shared) {
  const format::StoreRow records = a.store.row(sequence, index.head);
  if (keys.length > 0) prefetch_scan<kDim>(a, keys, records);
  BlockRow& at = shared.at;
  at.row = row;
  at.entry = index.entry;
  at.sequence = sequence;
  at.head = index.head;
  at.n = keys.n;
  at.begin = keys.begin;
  at.length = keys.length;
  at.records = records;
}

// Its samples and candidates; by one thread.
template <int kDim>
PKV_DEVICE void find_samples(const FusedArgs& a, const KeyRange& keys, FusedShared<kDim>& shared) {
  format::Samples samples = {};
  int32_t first = 0;
  int32_t count = 0;
  if (a.tail_samples > 0) {
    samples = format::samples(a.codec.geometry, keys.n, a.tail_samples);
#pragma unroll 1
    for (int end = 0; end < 2; ++end) {
      const int32_t i = sample_from(samples, keys.begin + (end != 0 ? keys.length : 0));
      count = i - first;
      if (end == 0) first = i;
    }
  }
  BlockRow& at = shared.at;
  at.samples = samples;
  at.first_sample = first;
  at.sample_count = count;
  at.wanted = static_cast<int32_t>(format::candidate_count(a.rule, keys.n));
  // 5: candidates are this share of the keys; twice as many are to lie in the window.
  int step = 0;
  while (step < a.rule.steps - 1 && keys.n >= a.rule.below[step]) ++step;
  shared.window_deviations = a.quantile[step];
  shared.scan.exchanges = 0;
}

// Its dense tokens; by a warp, whose lane p has part p.
template <int kDim>
PKV_DEVICE void find_dense(const FusedArgs& a, int64_t row, const RowIndex& index, int32_t rank,
                           int64_t sequence, FusedShared<kDim>& shared) {
  using Group = LaneGroup<32>;
  const int p = Group::rank();
  int64_t length = 0;
  if (p < a.part_count) {
    const TokenRun& run = a.runs[p];
    length = run.length(index.entry, row);
    DenseRun& dense = shared.dense[p];
    dense.start = run.starts != nullptr ? run.starts[index.entry] : 0;
    dense.keys = run.keys.row(index.entry, sequence, index.head);
    dense.values = run.values.row(index.entry, sequence, index.head);
  }
  const int64_t before = Group::sum_before(length);
  if (p < a.part_count) shared.dense[p].before = before;
  const Share share = share_of(Group::shuffle(before + length, 31), rank, a.team);
  if (p != 0) return;
  const int64_t own = share.end - share.begin;
  shared.at.dense = share;
  const bool is_early = a.arena.is_early != 0 && own <= a.arena.row_slots - kLeastRowSlots;
  shared.at.dense_slots = is_early ? static_cast<int32_t>(own) : 0;
}

template <int kDim>
PKV_DEVICE void find_row_part(const FusedArgs& a, int64_t row, int32_t rank, RowPart part,
                              FusedShared<kDim>& shared) {
  const RowIndex index = short_row_index(row, a.codec.geometry.kv_heads);
  const KeyRange keys = key_range(a, index.entry, rank);
  const int64_t sequence = a.sequences[index.entry];
  if (part == RowPart::kDense) {
    find_dense(a, row, index, rank, sequence, shared);
  } else if (LaneGroup<32>::rank() != 0) {
    return;
  } else if (part == RowPart::kKeys) {
    find_keys(a, row, index, keys, sequence, shared);
  } else {
    find_samples(a, keys, shared);
  }
}

}  // namespace pkv::cuda
