// Stage rerank: estimates of candidates and samples, and sums of their exponentials.
// docs/algorithm.md, sections 6.1 and 6.4.
// Not here: the estimates of a key (estimate.cuh), scores (score.cuh), the hits (hits.cuh).
// Traffic per candidate, d = 128: 80 B of records gathered, 4 B per head written and read twice.
// Bound: device memory, by gathers of 64 bytes.
// Exact: estimates of scalar codecs. Bounded: sums, in fp32, by lanes, then tiles, then blocks,
// always in the same order.
// Differs from cpu_ref: fp32 where that is double.
#pragma once

#include "backends/gpu/estimate.cuh"
#include "backends/gpu/logit.cuh"
#include "core/format/samples.h"

namespace PKV_GPU_NS {

inline constexpr int kMaxGroup = 128;

struct RerankArgs {
  StoreView store;
  pkv_geometry geometry;
  PreparedQueries prepared;
  EstimateQueries queries;
  int64_t rows;
  const int32_t* sequences;  // [b]
  const int64_t* lengths;    // [b]
  const int32_t* candidates;
  int64_t candidates_stride;
  const int32_t* candidate_counts;
  Logit logit;
  int32_t rank;         // PKV_RANK_*
  int32_t weigh_norms;  // 1: scores carry + ln nv
  float gain;
  float* estimates;          // [rows, G, candidates_stride]
  float* scores;             // [rows, candidates_stride]
  int32_t tail_samples;      // 0: no samples are wanted
  float* sample_estimates;   // [rows, G, tail_samples]
  float* rest_lse;           // [rows, G]; NULL: not wanted
  int32_t candidate_blocks;  // of a row: blocks x of the estimates
  int32_t sample_blocks;     // those behind
  LogSum* sums;              // [rows, candidate_blocks + sample_blocks, G]
  int32_t* seen;             // [rows, sample_blocks] samples that are no candidates
};

// 4.4: a bad query has no candidates and no samples.
PKV_DEVICE int64_t candidates_of(const RerankArgs& a, int64_t row) {
  return a.prepared.bad[row] != 0 ? 0 : a.candidate_counts[row];
}
PKV_DEVICE format::Samples samples_of(const RerankArgs& a, int64_t row) {
  if (a.prepared.bad[row] != 0) return {0, 1, 0};
  const int64_t entry = row_index(row, a.geometry.kv_heads).entry;
  return format::samples(a.geometry, a.lengths[entry], a.tail_samples);
}

// Whether a position is among ascending candidates. Every step-th of them lies in shared memory.
struct CandidateSet {
  static constexpr int kPivots = 256;
  int32_t pivots[kPivots];

  PKV_DEVICE static int64_t step(int64_t count) { return (count + kPivots - 1) / kPivots; }

  // By the threads of a block.
  template <int kThreads>
  PKV_DEVICE void load(const int32_t* candidates, int64_t count) {
    for (int64_t i = thread_index(); i * step(count) < count; i += kThreads) {
      pivots[i] = candidates[i * step(count)];
    }
  }
  PKV_DEVICE bool has(const int32_t* candidates, int64_t count, int64_t position) const {
    if (count == 0) return false;
    const int64_t stride = step(count);
    // The last pivot, then the last candidate, that is not behind the position.
    const int64_t pivot = last_up_to(pivots, (count + stride - 1) / stride, position);
    if (pivot < 0) return false;
    const int64_t left = count - pivot * stride;
    const int32_t* run = candidates + pivot * stride;
    return run[last_up_to(run, left < stride ? left : stride, position)] == position;
  }

 private:
  PKV_DEVICE static int64_t last_up_to(const int32_t* values, int64_t count, int64_t position) {
    int64_t begin = 0;
    while (count > 0) {
      const int64_t half = count / 2;
      if (values[begin + half] <= position) {
        begin += half + 1;
        count -= half + 1;
      } else {
        count = half;
      }
    }
    return begin - 1;
  }
};

// What a key is to the sum of its row.
enum KeyUse : uint8_t { kCounts = 0, kIsBad = 1, kIsCandidate = 2 };

// The keys that a block estimates: candidates or samples of a row.
struct KeyList {
  int64_t count;
  float* estimates;  // of the first head
  int64_t stride;    // to the next head's
  bool is_samples;
};

// One block's view of a row.
struct RerankRow {
  format::StoreRow records;
  const int32_t* candidates;
  int64_t candidate_count;
  format::Samples samples;
  KeyList keys;

  PKV_DEVICE int64_t position(int64_t i) const {
    return keys.is_samples ? samples.position(i) : candidates[i];
  }
  PKV_DEVICE KeyUse use(int64_t position, bool is_bad, const CandidateSet& set) const {
    if (!keys.is_samples) return kCounts;
    if (set.has(candidates, candidate_count, position)) return kIsCandidate;
    return is_bad ? kIsBad : kCounts;
  }
};

PKV_DEVICE RerankRow rerank_row(const RerankArgs& a, int64_t row, bool is_samples) {
  const RowIndex at = row_index(row, a.geometry.kv_heads);
  RerankRow result{};
  result.records = a.store.row(a.sequences[at.entry], at.head);
  result.candidates = a.candidates + row * a.candidates_stride;
  result.candidate_count = candidates_of(a, row);
  if (is_samples) result.samples = samples_of(a, row);
  const int64_t first_head = row * a.prepared.group;
  result.keys =
      is_samples ? KeyList{result.samples.count, a.sample_estimates + first_head * a.tail_samples,
                           a.tail_samples, true}
                 : KeyList{result.candidate_count, a.estimates + first_head * a.candidates_stride,
                           a.candidates_stride, false};
  return result;
}

// The words of the row's queries, from head `first` on.
PKV_DEVICE const uint32_t* query_words(const RerankArgs& a, int64_t head, int32_t head_words) {
  return a.geometry.codec == PKV_CODEC_POLAR4
             ? reinterpret_cast<const uint32_t*>(a.prepared.heads) + head * head_words
             : a.queries.words + head * head_words;
}

template <class Traits>
struct RerankShared {
  RerankRow row;
  CandidateSet candidates;  // of samples
  LogSum sums[kMaxGroup];
  int32_t seen;
  uint8_t use[Traits::kRerankTile];
};

// Estimates of a tile of keys at heads [first, first + heads) of the row; what each key is, too.
template <class Traits, int32_t kCodec, class Shape>
PKV_DEVICE void estimate_tile(const RerankArgs& a, const RerankRow& row,
                              const RowEstimateQueries& queries, int32_t first, int32_t heads,
                              int64_t begin, RerankShared<Traits>& shared) {
  using Group = LaneGroup<Shape::kLanes>;
  constexpr int kGroups = Traits::kRerankThreads / Shape::kLanes;
  const KeyList& keys = row.keys;
  for (int64_t next = 0; next < Traits::kRerankTile && begin + next < keys.count;
       next += kGroups * Shape::kKeys) {
    KeySlot slots[Shape::kKeys];
    bool is_there[Shape::kKeys];
    bool is_bad[Shape::kKeys];
#pragma unroll
    for (int i = 0; i < Shape::kKeys; ++i) {
      const int64_t local = next + i * kGroups + Group::index();
      is_there[i] = local < Traits::kRerankTile && begin + local < keys.count;
      const int64_t position = row.position(is_there[i] ? begin + local : begin);
      slots[i] = key_slot(a.store, row.records, position);
      is_bad[i] = keys.is_samples && is_bf16_nan(*slots[i].factor());
      if (is_there[i] && Group::rank() == 0) {
        shared.use[local] = row.use(position, is_bad[i], shared.candidates);
      }
    }
    KeyParts<kCodec, Shape> parts;
    parts.load(slots);
    estimate(parts, queries, a.store.layout, heads, [&](int i, int32_t g, float est) {
      const int64_t at = begin + next + i * kGroups + Group::index();
      if (is_there[i])
        keys.estimates[(first + g) * keys.stride + at] = is_bad[i] ? quiet_nan() : est;
    });
  }
}

// The sums of a tile at heads [first, first + heads) join those of the block.
template <class Traits>
PKV_DEVICE void add_tile(const RerankArgs& a, const RerankRow& row, int32_t first, int32_t heads,
                         int64_t begin, RerankShared<Traits>& shared) {
  using Group = LaneGroup<32>;
  const KeyList& keys = row.keys;
  const int64_t left = keys.count - begin;
  const auto count = static_cast<int32_t>(left < Traits::kRerankTile ? left : Traits::kRerankTile);
  for (int32_t g = first + Group::index(); g < first + heads; g += Group::count()) {
    LogSum sum = LogSum::nothing();
    for (int32_t i = Group::rank(); i < count; i += 32) {
      if (shared.use[i] == kCounts) sum.add(a.logit(keys.estimates[g * keys.stride + begin + i]));
    }
    sum = sum_of_lanes<32>(sum);
    if (Group::rank() == 0) shared.sums[g] = both(shared.sums[g], sum);
  }
  if (!keys.is_samples || first != 0) return;
  int32_t seen = 0;
  for (int32_t i = thread_index(); i < count; i += Traits::kRerankThreads) {
    if (shared.use[i] != kIsCandidate) ++seen;
  }
  if (seen > 0) atomic_add(&shared.seen, seen);
}

// Block: some tiles of candidates, or of samples, of a row. Dynamic shared memory:
// Traits::kRerankQueryBytes, for as many heads as it holds; the keys come once for each such run.
template <class Traits, int32_t kCodec, class Shape>
PKV_KERNEL(Traits::kRerankThreads, Shape::kResident)
estimate_keys(RerankArgs a) {
  constexpr int kThreads = Traits::kRerankThreads;
  constexpr int kTile = Traits::kRerankTile;
  PKV_SHARED(RerankShared<Traits>, shared);
  PKV_DYNAMIC_SHARED(memory);
  auto* staged = reinterpret_cast<uint32_t*>(memory);
  const int32_t G = a.prepared.group;
  const int32_t head_words =
      kCodec == PKV_CODEC_POLAR4 ? a.geometry.head_dim : kQueryVectors * 4 * a.store.layout.chunks;
  const int32_t most_heads = Traits::kRerankQueryBytes / 4 / head_words;
  const auto block = static_cast<int32_t>(block_x());
  const bool is_samples = block >= a.candidate_blocks;
  const int64_t tile_step = int64_t{is_samples ? a.sample_blocks : a.candidate_blocks} * kTile;
  const int64_t first_tile = int64_t{is_samples ? block - a.candidate_blocks : block} * kTile;
  const bool sums = is_samples ? a.rest_lse != nullptr : a.rank == PKV_RANK_GROUP;
  for (int64_t r = block_y(); r < a.rows; r += grid_y()) {
    for (int32_t g = thread_index(); g < G; g += kThreads) shared.sums[g] = LogSum::nothing();
    if (thread_index() == 0) {
      shared.row = rerank_row(a, r, is_samples);
      shared.seen = 0;
    }
    sync_block();
    const RerankRow& row = shared.row;
    if (is_samples) {
      shared.candidates.template load<kThreads>(row.candidates, row.candidate_count);
    }
    for (int32_t first = 0; first < G && first_tile < row.keys.count; first += most_heads) {
      const int32_t heads = G - first < most_heads ? G - first : most_heads;
      const int64_t head = r * G + first;
      const uint32_t* words = query_words(a, head, head_words);
      for (int32_t i = 4 * thread_index(); i < heads * head_words; i += 4 * kThreads) {
        store_words(staged + i, load_words<4>(words + i));
      }
      const RowEstimateQueries queries = {staged, head_words, a.queries.terms + head, a.gain};
      for (int64_t begin = first_tile; begin < row.keys.count; begin += tile_step) {
        sync_block();  // the queries are there; the tile before has been added
        estimate_tile<Traits, kCodec, Shape>(a, row, queries, first, heads, begin, shared);
        sync_block();
        if (sums) add_tile<Traits>(a, row, first, heads, begin, shared);
      }
      sync_block();  // the staged queries are read
    }
    sync_block();
    const int64_t at = r * (a.candidate_blocks + a.sample_blocks) + block;
    for (int32_t g = thread_index(); g < G; g += kThreads) a.sums[at * G + g] = shared.sums[g];
    if (is_samples) {
      const int32_t of_samples = block - a.candidate_blocks;
      if (thread_index() == 0) a.seen[r * a.sample_blocks + of_samples] = shared.seen;
      // Entries without a sample.
      for (int64_t i = row.keys.count + int64_t{of_samples} * kThreads + thread_index();
           i < a.tail_samples; i += int64_t{a.sample_blocks} * kThreads) {
        for (int32_t g = 0; g < G; ++g) row.keys.estimates[g * row.keys.stride + i] = quiet_nan();
      }
    }
    sync_block();  // the sums are read
  }
}

}  // namespace PKV_GPU_NS
