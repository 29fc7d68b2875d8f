// The tail of attend in blocks: the mass of candidates that were not fetched, sketched values of
// candidates and of samples. docs/algorithm.md, sections 6.4 and 8. Not here: what becomes of them
// (merge.cuh).
// Sums of sketched values stay in rotated space, and without mu_v.
// Differs from cpu_ref: fetched candidates are not marked once per row, each block marks its own.
#pragma once

#include "backends/gpu/records.cuh"
#include "backends/gpu/softmax.cuh"
#include "core/format/levels.h"
#include "core/format/samples.h"

namespace PKV_GPU_NS {

struct TailArgs {
  int32_t kind;  // PKV_TAIL_*
  int32_t k;
  int32_t sample_most;  // T
  int32_t query_heads;
  StoreView store;
  const int64_t* lengths;     // [b] n
  const int32_t* positions;   // [rows, k]
  const int32_t* counts;      // [rows]
  const int32_t* candidates;  // [rows, candidates_stride] ascending
  int64_t candidates_stride;
  const int32_t* candidate_counts;  // [rows]
  const float* estimates;           // [b, hq, candidates_stride]
  const float* sample_estimates;    // [b, hq, T]
};

// Which of a run of kTokens tokens are left out.
template <int kTokens>
struct TailTile {
  static_assert(kTokens % 32 == 0);
  uint32_t words[kTokens / 32];

  PKV_DEVICE void leave_out(int64_t i) {
    atomic_or(&words[i / 32], uint32_t{1} << (static_cast<uint32_t>(i) % 32));
  }
  PKV_DEVICE bool is_out(int64_t i) const { return ((words[i / 32] >> (i % 32)) & 1U) != 0; }
};

// The first i of [begin, end) with at(i) >= value, or end; `at` ascends.
template <class At>
PKV_DEVICE int64_t lower_bound(int64_t begin, int64_t end, int64_t value, const At& at) {
  while (begin < end) {
    const int64_t middle = begin + (end - begin) / 2;
    if (at(middle) < value) {
      begin = middle + 1;
    } else {
      end = middle;
    }
  }
  return begin;
}

// Eight elements sign_j * a[code_j] of a sketch, from one byte of each plane. Section 3.5.
PKV_DEVICE void unpack_sketch4(uint32_t m0, uint32_t m1, uint32_t m2, uint32_t signs, float* x) {
  constexpr int32_t kLevels[8] = {format::kScalar4Levels[0], format::kScalar4Levels[1],
                                  format::kScalar4Levels[2], format::kScalar4Levels[3],
                                  format::kScalar4Levels[4], format::kScalar4Levels[5],
                                  format::kScalar4Levels[6], format::kScalar4Levels[7]};
  uint64_t bytes = 0;  // all levels fit a byte
#pragma unroll
  for (int i = 0; i < 8; ++i) bytes |= static_cast<uint64_t>(kLevels[i]) << (8 * i);
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const uint32_t code = ((m0 >> j) & 1U) | (((m1 >> j) & 1U) << 1) | (((m2 >> j) & 1U) << 2);
    const auto level = static_cast<float>((bytes >> (8 * code)) & 0xffU);
    x[j] = ((signs >> j) & 1U) != 0 ? level : -level;
  }
}
PKV_DEVICE void unpack_sketch2(uint32_t m0, uint32_t signs, float* x) {
  constexpr float kLow = format::kNormal2Levels[0];
  constexpr float kHigh = format::kNormal2Levels[1];
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const float level = ((m0 >> j) & 1U) != 0 ? kHigh : kLow;
    x[j] = ((signs >> j) & 1U) != 0 ? level : -level;
  }
}

// Elements 8 * run .. + 7 of the sketch in a slot.
PKV_DEVICE void load_sketch8(const KeySlot& slot, int32_t bits, int run, float* x) {
  const std::byte* chunk = slot.sketch() + run / 4 * slot.layout->sketch_chunk_bytes;
  const int shift = run % 4 * 8;
  if (bits == 4) {
    const auto words = load_words<4>(chunk);
    unpack_sketch4(words.word[0] >> shift, words.word[1] >> shift, words.word[2] >> shift,
                   words.word[3] >> shift, x);
  } else {
    const auto words = load_words<2>(chunk);
    unpack_sketch2(words.word[0] >> shift, words.word[1] >> shift, x);
  }
}

// The tail of some query heads of a row.
template <class Shape>
class TailRow {
 public:
  using Group = typename Shape::Group;

  PKV_DEVICE TailRow(const TailArgs& a, const Logit& logit, const CodecView& codec, int64_t row,
                     int64_t entry, int64_t sequence, int32_t head, int32_t group, int32_t first,
                     int32_t heads)
      : candidate_count(a.candidate_counts[row]),
        a_(a),
        logit_(logit),
        bits_(codec.geometry.sketch_bits),
        dv_(codec.geometry.value_dim),
        heads_(heads),
        query_head_(entry * a.query_heads + int64_t{head} * group + first),
        candidates_(a.candidates + row * a.candidates_stride),
        positions_(a.positions + row * a.k),
        fetched_(a.k > 0 ? a.counts[row] : 0) {
    if (a.kind == PKV_TAIL_MEAN) return;
    records_ = a.store.row(sequence, head);
    samples = format::samples(codec.geometry, a.lengths[entry], a.sample_most);
  }

  int64_t candidate_count;
  format::Samples samples = {};

  // Candidates [begin, end): with sketch tokens with their values, else their mass alone.
  template <int kThreads, int kTokens>
  PKV_DEVICE void add_candidates(int64_t begin, int64_t end, TailTile<kTokens>& tile,
                                 Softmax<Shape>& state) const {
    for (int64_t first = begin; first < end; first += kTokens) {
      const int64_t last = first + kTokens < end ? first + kTokens : end;
      clear<kThreads>(tile);
      for (int32_t slot = thread_index(); slot < fetched_; slot += kThreads) {
        const int64_t i = find_candidate(first, last, positions_[slot]);
        if (i < last) tile.leave_out(i - first);
      }
      sync_block();
      const float* estimates = a_.estimates + query_head_ * a_.candidates_stride;
      if (a_.kind == PKV_TAIL_SKETCH) {
        add_sketches<kThreads>(
            first, last, tile, estimates, a_.candidates_stride,
            [this](int64_t i) { return int64_t{candidates_[i]}; }, state);
      } else {
        add_mass<kThreads>(first, last, tile, estimates, state);
      }
    }
    if (a_.kind != PKV_TAIL_SKETCH) join_lanes(state);
  }

  // Samples [begin, end): with sketch those that are no candidates, else those not fetched.
  template <int kThreads, int kTokens>
  PKV_DEVICE void add_samples(int64_t begin, int64_t end, TailTile<kTokens>& tile,
                              Softmax<Shape>& state) const {
    const auto place = [this](int64_t i) { return samples.position(i); };
    for (int64_t first = begin; first < end; first += kTokens) {
      const int64_t last = first + kTokens < end ? first + kTokens : end;
      clear<kThreads>(tile);
      if (a_.kind == PKV_TAIL_SKETCH) {
        for (int64_t i = first + thread_index(); i < last; i += kThreads) {
          if (find_candidate(0, candidate_count, place(i)) < candidate_count) {
            tile.leave_out(i - first);
          }
        }
      } else {
        for (int32_t slot = thread_index(); slot < fetched_; slot += kThreads) {
          const int64_t position = positions_[slot];
          if (position < place(first) || position > place(last - 1)) continue;
          const int64_t i = lower_bound(first, last, position, place);
          if (place(i) != position) continue;
          if (find_candidate(0, candidate_count, position) < candidate_count) {
            tile.leave_out(i - first);
          }
        }
      }
      sync_block();
      add_sketches<kThreads>(first, last, tile, a_.sample_estimates + query_head_ * a_.sample_most,
                             a_.sample_most, place, state);
    }
  }

 private:
  // The place among candidates [begin, end) of the one at `position`; none: end.
  PKV_DEVICE int64_t find_candidate(int64_t begin, int64_t end, int64_t position) const {
    const auto at = [this](int64_t i) { return int64_t{candidates_[i]}; };
    const int64_t i = lower_bound(begin, end, position, at);
    return i < end && at(i) == position ? i : end;
  }

  template <int kThreads, int kTokens>
  PKV_DEVICE static void clear(TailTile<kTokens>& tile) {
    sync_block();  // readers of the tile before are done
    for (int i = thread_index(); i < kTokens / 32; i += kThreads) tile.words[i] = 0;
    sync_block();
  }

  // A lane group per token: tokens [first, last), whose estimates of head h begin at
  // estimates + h * stride. NaN: none.
  template <int kThreads, int kTokens, class Place>
  PKV_DEVICE void add_sketches(int64_t first, int64_t last, const TailTile<kTokens>& tile,
                               const float* estimates, int64_t stride, const Place& place,
                               Softmax<Shape>& state) const {
    constexpr int kGroups = kThreads / Shape::kLanes;
    for (int64_t i = first + Group::index(); i < last; i += kGroups) {
      if (tile.is_out(i - first)) continue;
      const KeySlot slot = key_slot(a_.store, records_, place(i));
      float weight[Shape::kHeads];
      bool is_there = false;
#pragma unroll
      for (int h = 0; h < Shape::kHeads; ++h) {
        const float estimate = h < heads_ ? estimates[h * stride + i] : quiet_nan();
        weight[h] = 0.0F;
        if (estimate != estimate) continue;
        const float logit = logit_(estimate);
        state.raise(h, logit);
        weight[h] = state.weigh(h, logit);
        is_there = true;
      }
      if (!is_there) continue;  // a bad key: its factor is NaN
      const float factor = format::bf16_to_float(*slot.sketch_factor());
#pragma unroll
      for (int c = 0; c < Shape::kChunks; ++c) {
        const int j = Shape::begin(c);
        if (j >= dv_) continue;
        float x[8];
        load_sketch8(slot, bits_, j / 8, x);
#pragma unroll
        for (int h = 0; h < Shape::kHeads; ++h) state.add8(h, c, weight[h] * factor, x);
      }
    }
  }

  // A lane per token; afterwards the lanes of a group differ until join_lanes.
  template <int kThreads, int kTokens>
  PKV_DEVICE void add_mass(int64_t first, int64_t last, const TailTile<kTokens>& tile,
                           const float* estimates, Softmax<Shape>& state) const {
    for (int64_t i = first + thread_index(); i < last; i += kThreads) {
      if (tile.is_out(i - first)) continue;
#pragma unroll
      for (int h = 0; h < Shape::kHeads; ++h) {
        if (h >= heads_) continue;
        const float logit = logit_(estimates[h * a_.candidates_stride + i]);
        state.raise(h, logit);
        state.weigh(h, logit);
      }
    }
  }

  PKV_DEVICE static void join_lanes(Softmax<Shape>& state) {
#pragma unroll
    for (int h = 0; h < Shape::kHeads; ++h) {
      const float max = Group::max(state.max[h]);
      state.sum[h] = Group::sum(state.sum[h] * exp_below(state.max[h], max));
      state.max[h] = max;
    }
  }

  const TailArgs& a_;
  const Logit& logit_;
  int32_t bits_;
  int32_t dv_;
  int32_t heads_;
  int64_t query_head_;  // the first, counted over the batch
  const int32_t* candidates_;
  const int32_t* positions_;
  int32_t fetched_;
  format::StoreRow records_ = {};
};

}  // namespace PKV_GPU_NS
