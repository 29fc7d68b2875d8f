// Stage attend: exact softmax over the dense parts and the fetched rows, and the tail (tail.cuh).
// docs/algorithm.md, section 8. Not here: joining the blocks (merge.cuh).
// Traffic per row: K and V once for up to eight query heads, the tail's estimates and sketches.
// Bound: device memory for dense parts, PCIe for rows that lie in the host's memory.
// Bounded: fp32, every sum in one order.
// Differs from cpu_ref: the running maximum is raised on the way. A block takes a share of one kind
// of tokens, its slot, so that rows travel over PCIe while other blocks read what lies near.
#pragma once

#include "backends/gpu/row_cache.cuh"
#include "backends/gpu/softmax.cuh"
#include "backends/gpu/tail.cuh"
#include "backends/gpu/vectors.cuh"

namespace PKV_GPU_NS {

// Tokens with original K and V: a part, or the fetched rows.
struct TokenRun {
  VectorSource keys;
  VectorSource values;
  int64_t tokens;          // the most of them
  const int64_t* lengths;  // [b]; NULL: see counts
  const int32_t* counts;   // [rows]; NULL too: `tokens` for all
  const int64_t* starts;   // [b]; NULL: 0
  const int32_t*
      positions;           // [rows, tokens] of rows read in place; NULL: token t lies at start + t
  int32_t is_by_sequence;  // the first axis is sequences, not entries of the batch
  const int32_t* places;   // [rows, tokens] RowPlace of rows read in place; NULL: no row cache

  PKV_DEVICE int64_t length(int64_t entry, int64_t row) const {
    if (counts != nullptr) return counts[row];
    return lengths != nullptr ? lengths[entry] : tokens;
  }
};

inline TokenRun run_of(const pkv_part& part) {
  TokenRun run{};
  run.keys = source_of(part.keys, part.key_pages);
  run.values = source_of(part.values, part.value_pages);
  run.tokens = part.keys.shape[2];
  run.lengths = part.lengths;
  run.starts = part.starts;
  return run;
}

inline constexpr int kRowsRun = PKV_MAX_PARTS;  // the fetched rows' place among the runs

// Slots of a query head by kind, one after the other. A slot is a block's share.
struct AttendSlots {
  int32_t dense;
  int32_t rows;
  int32_t candidates;
  int32_t samples;

  PKV_HD constexpr int32_t all() const { return dense + rows + candidates + samples; }
  // Of the blocks in the order of their launch: those with rows first, whose reads take longest.
  PKV_HD constexpr int32_t of_block(int32_t block) const {
    if (block < rows) return dense + block;
    return block < rows + dense ? block - rows : block;
  }
};

struct AttendArgs {
  CodecView codec;
  TensorView queries;  // [b, hq, d]
  TokenRun runs[PKV_MAX_PARTS + 1];
  int32_t part_count;
  int32_t group;       // G
  int64_t rows;        // b * h
  const int32_t* bad;  // [rows] 4.4
  const int32_t* sequences;
  Logit logit;
  AttendSlots slots;
  Partials partials;
  TailArgs tail;
  pkv_row_cache_args row_cache;  // of the fetched rows
};

// [begin, end) of `count` things for share `index` of `shares`.
struct Share {
  int64_t begin;
  int64_t end;
};
PKV_DEVICE Share share_of(int64_t count, int32_t index, int32_t shares) {
  if (count * shares <= INT32_MAX) {  // the common case, in 32 bits: a short division
    const auto few = static_cast<uint32_t>(count);
    const auto at = static_cast<uint32_t>(index);
    const auto all = static_cast<uint32_t>(shares);
    return {few * at / all, few * (at + 1) / all};
  }
  return {count * index / shares, count * (index + 1) / shares};
}

// The block's heads of a row: `heads` from query head `first` of the group on.
struct HeadRange {
  int64_t row;
  int64_t entry;
  int64_t sequence;
  int32_t head;  // KV head
  int32_t first;
  int32_t heads;
};

template <class Shape>
struct QueryRuns {
  float q[Shape::kHeads][Shape::kElements];  // zeros for heads and elements that do not exist

  // All loads are under way before the first is unpacked.
  PKV_DEVICE void load(const AttendArgs& a, const HeadRange& at) {
    const int32_t d = a.codec.geometry.head_dim;
    const int64_t bytes = float_bytes(a.queries.dtype);
    Raw8 raw[Shape::kHeads][Shape::kChunks];
#pragma unroll
    for (int h = 0; h < Shape::kHeads; ++h) {
      const bool is_there = h < at.heads;
      const std::byte* row =
          a.queries.row(at.entry, at.head * a.group + at.first + (is_there ? h : 0));
#pragma unroll
      for (int c = 0; c < Shape::kChunks; ++c) {
        const int j = Shape::begin(c);
        raw[h][c] = {};
        if (is_there && j < d) raw[h][c] = load_raw8(a.queries.dtype, row + j * bytes);
      }
    }
#pragma unroll
    for (int h = 0; h < Shape::kHeads; ++h) {
#pragma unroll
      for (int c = 0; c < Shape::kChunks; ++c) {
        unpack8(a.queries.dtype, raw[h][c], q[h] + 8 * c);
      }
    }
  }
};

// What a lane holds of a K or V vector.
template <class Shape>
struct VectorRuns {
  Raw8 raw[Shape::kChunks];

  // `from` NULL: zeros.
  PKV_DEVICE void load(pkv_dtype dtype, const std::byte* from, int32_t width) {
    const int64_t bytes = float_bytes(dtype);
#pragma unroll
    for (int c = 0; c < Shape::kChunks; ++c) {
      const int j = Shape::begin(c);
      raw[c] = {};
      if (from != nullptr && j < width) raw[c] = load_raw8(dtype, from + j * bytes);
    }
  }
  // To memory aligned to 16 bytes.
  PKV_DEVICE void keep(pkv_dtype dtype, std::byte* to, int32_t width) const {
    const int64_t bytes = float_bytes(dtype);
#pragma unroll
    for (int c = 0; c < Shape::kChunks; ++c) {
      const int j = Shape::begin(c);
      if (j < width) store_raw8(dtype, to + j * bytes, raw[c]);
    }
  }
};

// The vectors of a run for one row of the call.
struct TokenRow {
  VectorRow keys;
  VectorRow values;
  int64_t start;
  const int32_t* positions;  // of rows read in place; NULL: token t lies at start + t
  const int32_t* places;     // NULL: no row cache
  RowCacheRow cache;

  PKV_DEVICE TokenRow(const AttendArgs& a, const HeadRange& at, const TokenRun& run)
      : keys(run.keys.row(run.is_by_sequence != 0 ? at.sequence : at.entry, at.sequence, at.head)),
        values(
            run.values.row(run.is_by_sequence != 0 ? at.sequence : at.entry, at.sequence, at.head)),
        start(run.starts != nullptr ? run.starts[at.entry] : 0),
        positions(run.positions != nullptr ? run.positions + at.row * run.tokens : nullptr),
        places(run.places != nullptr ? run.places + at.row * run.tokens : nullptr),
        cache(a.row_cache, at.sequence * a.codec.geometry.kv_heads + at.head) {}

  PKV_DEVICE RowPlace place(int64_t t) const { return {places != nullptr ? places[t] : kNoLine}; }
  PKV_DEVICE int64_t position(int64_t t) const {
    return positions != nullptr ? positions[t] : start + t;
  }
};

// Tokens of a run into the state: those of the group are kGroups apart, kAhead of them under way.
template <int kThreads, class Shape>
PKV_DEVICE void attend_run(const AttendArgs& a, const HeadRange& at, const TokenRun& run,
                           const Share& share, const QueryRuns<Shape>& query,
                           Softmax<Shape>& state) {
  using Group = typename Shape::Group;
  constexpr int kGroups = kThreads / Shape::kLanes;
  constexpr int kAhead = Shape::kChunks == 1 && Shape::kHeads <= 4 ? 2 : 1;  // registers
  const int32_t d = a.codec.geometry.head_dim;
  const int32_t dv = a.codec.geometry.value_dim;
  const TokenRow row(a, at, run);
  const pkv_dtype key_dtype = run.keys.tensor.dtype;
  const pkv_dtype value_dtype = run.values.tensor.dtype;

  // The bound is the block's, so that the groups of a hardware group stay together.
  for (int64_t base = share.begin; base < share.end; base += int64_t{kAhead} * kGroups) {
    // First where the tokens lie: a load behind one that crosses PCIe waits for it.
    bool is_there[kAhead];
    int64_t position[kAhead];
    RowPlace place[kAhead];
#pragma unroll
    for (int u = 0; u < kAhead; ++u) {
      const int64_t t = base + u * kGroups + Group::index();
      is_there[u] = t < share.end;
      position[u] = is_there[u] ? row.position(t) : 0;
      place[u] = is_there[u] ? row.place(t) : RowPlace{kNoLine};
    }
    VectorRuns<Shape> k[kAhead];
    VectorRuns<Shape> v[kAhead];
#pragma unroll
    for (int u = 0; u < kAhead; ++u) {
      const std::byte* key = nullptr;
      const std::byte* value = nullptr;
      if (place[u].is_there()) {
        key = row.cache.key(place[u].line());
        value = row.cache.value(place[u].line());
      } else if (is_there[u]) {
        key = row.keys.at(position[u]);
        value = row.values.at(position[u]);
      }
      k[u].load(key_dtype, key, d);
      v[u].load(value_dtype, value, dv);
    }
#pragma unroll
    for (int u = 0; u < kAhead; ++u) {
      if (!place[u].is_cached() || place[u].is_there()) continue;
      k[u].keep(key_dtype, row.cache.key(place[u].line()), d);
      v[u].keep(value_dtype, row.cache.value(place[u].line()), dv);
    }

    float logit[kAhead][Shape::kHeads];
#pragma unroll
    for (int u = 0; u < kAhead; ++u) {
      float dot[Shape::kHeads] = {};
#pragma unroll
      for (int c = 0; c < Shape::kChunks; ++c) {
        float x[8];
        unpack8(key_dtype, k[u].raw[c], x);
#pragma unroll
        for (int h = 0; h < Shape::kHeads; ++h) {
#pragma unroll
          for (int j = 0; j < 8; ++j) dot[h] = fmadd(query.q[h][8 * c + j], x[j], dot[h]);
        }
      }
#pragma unroll
      for (int h = 0; h < Shape::kHeads; ++h) {
        const float product = Group::sum(dot[h]);
        logit[u][h] = is_there[u] ? a.logit(product) : minus_infinity();
        state.raise(h, logit[u][h]);
      }
    }

#pragma unroll
    for (int u = 0; u < kAhead; ++u) {
      float weight[Shape::kHeads];
#pragma unroll
      for (int h = 0; h < Shape::kHeads; ++h) weight[h] = state.weigh(h, logit[u][h]);
#pragma unroll
      for (int c = 0; c < Shape::kChunks; ++c) {
        float x[8];
        unpack8(value_dtype, v[u].raw[c], x);
#pragma unroll
        for (int h = 0; h < Shape::kHeads; ++h) state.add8(h, c, weight[h], x);
      }
    }
  }
}

// Share `index` of `shares` of runs [first, last), taken as one sequence of tokens.
template <int kThreads, class Shape>
PKV_DEVICE void attend_runs(const AttendArgs& a, const HeadRange& at, int32_t first, int32_t last,
                            int32_t index, int32_t shares, const QueryRuns<Shape>& query,
                            Softmax<Shape>& state) {
  int64_t count = 0;
  for (int32_t p = first; p < last; ++p) count += a.runs[p].length(at.entry, at.row);
  const Share share = share_of(count, index, shares);
  int64_t before = 0;
  for (int32_t p = first; p < last; ++p) {
    const int64_t length = a.runs[p].length(at.entry, at.row);
    const int64_t begin = share.begin > before ? share.begin - before : 0;
    const int64_t end = share.end < before + length ? share.end - before : length;
    if (begin < end) attend_run<kThreads>(a, at, a.runs[p], {begin, end}, query, state);
    before += length;
  }
}

// Block: one slot of kHeads query heads of a row; items along x, so that a slot's come together.
template <class Traits, class Shape>
PKV_KERNEL(Traits::kAttendThreads)
attend_slots_of(AttendArgs a) {
  constexpr int kThreads = Traits::kAttendThreads;
  struct Shared {
    SoftmaxRoom<Shape, kThreads> room;
    TailTile<Traits::kTailTile> tile;
  };
  PKV_SHARED(Shared, shared);
  const int32_t kv_heads = a.codec.geometry.kv_heads;
  const int32_t passes = (a.group + Shape::kHeads - 1) / Shape::kHeads;
  const int32_t slot = a.slots.of_block(static_cast<int32_t>(block_y()));
  for (int64_t item = block_x(); item < a.rows * passes; item += grid_x()) {
    HeadRange at{};
    at.row = item / passes;
    const RowIndex row = row_index(at.row, kv_heads);
    at.entry = row.entry;
    at.head = row.head;
    at.sequence = a.sequences[at.entry];
    if (a.bad[at.row] != 0) continue;  // the whole block
    at.first = static_cast<int32_t>(item % passes) * Shape::kHeads;
    at.heads = a.group - at.first < Shape::kHeads ? a.group - at.first : Shape::kHeads;

    Softmax<Shape> state;
    state.clear();
    bool has_values = true;
    int32_t index = slot;
    if (index < a.slots.dense + a.slots.rows) {
      QueryRuns<Shape> query;
      query.load(a, at);
      const bool is_dense = index < a.slots.dense;
      attend_runs<kThreads>(a, at, is_dense ? 0 : kRowsRun, is_dense ? a.part_count : kRowsRun + 1,
                            is_dense ? index : index - a.slots.dense,
                            is_dense ? a.slots.dense : a.slots.rows, query, state);
    } else {
      const TailRow<Shape> tail(a.tail, a.logit, a.codec, at.row, at.entry, at.sequence, at.head,
                                a.group, at.first, at.heads);
      index -= a.slots.dense + a.slots.rows;
      if (index < a.slots.candidates) {
        const Share share = share_of(tail.candidate_count, index, a.slots.candidates);
        has_values = a.tail.kind == PKV_TAIL_SKETCH;
        tail.template add_candidates<kThreads>(share.begin, share.end, shared.tile, state);
      } else {
        const Share share =
            share_of(tail.samples.count, index - a.slots.candidates, a.slots.samples);
        tail.template add_samples<kThreads>(share.begin, share.end, shared.tile, state);
      }
    }
    write_partial<kThreads>(state, shared.room, a.partials, at.row * a.group + at.first, at.heads,
                            slot, a.codec.geometry.value_dim, has_values);
  }
}

}  // namespace PKV_GPU_NS
