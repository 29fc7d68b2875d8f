// What the host decides about the fused step: whether it serves a step, how many blocks a row gets,
// where pieces of shared memory lie. Not here: the kernel (fused_kernel.cuh).
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "backends/cuda/fused_launch.h"
#include "core/format/candidates.h"

namespace pkv::cuda {
namespace {

constexpr int64_t kRowSlotBytes = 56 << 10;  // of fetched rows at a time, about
constexpr int32_t kLeastEntries = 512;       // of a list in shared memory beside keys
constexpr int64_t kMostRounds = 4000;        // rows of a team, by the bits of a tag

int64_t rows_of(const pkv_step_args& a) {
  return int64_t{a.vote.batch.batch} * a.vote.codec.geometry->kv_heads;
}
int32_t group_of(const pkv_step_args& a) {
  return a.vote.query_heads / a.vote.codec.geometry->kv_heads;
}
bool has_attention(const pkv_step_args& a) { return a.attend.output.ndim != 0; }

int attribute(cudaDeviceAttr what, int ordinal) {
  int value = 0;
  return cudaDeviceGetAttribute(&value, what, ordinal) == cudaSuccess ? value : 0;
}

// Blocks of a row, and of the launch.
struct Grid {
  int32_t team;
  int64_t teams;
};
Grid grid_of(const pkv_step_args& a, int ordinal) {
  const int64_t rows = rows_of(a);
  const int64_t blocks = attribute(cudaDevAttrMultiProcessorCount, ordinal);
  int64_t team = rows < blocks ? blocks / rows : 1;
  team = team < kFusedTeam ? team : kFusedTeam;
  const int64_t teams = blocks / team < rows ? blocks / team : rows;
  return {static_cast<int32_t>(team), teams};
}

// The standard deviation above which a share of a normal distribution lies; from 0.4 on: 0.
float quantile_above(double share) {
  if (share >= 0.4) return 0.0F;
  double low = 0.0;
  double high = 8.0;
  for (int i = 0; i < 40; ++i) {
    const double middle = (low + high) / 2.0;
    (0.5 * std::erfc(middle * 0.70710678118654752) > share ? low : high) = middle;
  }
  return static_cast<float>(low);
}

int32_t hit_capacity(int32_t k) { return static_cast<int32_t>(gpu::round_up(k + kSpareHits, 32)); }

template <class F>
auto with_dim(int32_t head_dim, const F& f) {
  switch (head_dim) {
    case 64: return f(std::integral_constant<int, 64>());
    case 128: return f(std::integral_constant<int, 128>());
    default: return f(std::integral_constant<int, 256>());
  }
}

int64_t shared_bytes(int32_t head_dim) {
  return with_dim(head_dim, [](auto dim) { return fused_shared_bytes<dim()>(); });
}

Mailbox mailbox_of(const pkv_step_args& a, const Grid& grid, Scratch& scratch) {
  Mailbox box{};
  const int32_t dv = a.vote.codec.geometry->value_dim;
  box.block_words =
      static_cast<int32_t>(gpu::round_up(Mailbox::kPartial + group_of(a) * (dv + 2), 32));
  box.hit_capacity = hit_capacity(a.rerank.k);
  box.list_words = kMaxTies + 3 * box.hit_capacity;
  box.words = scratch.take<uint64_t>(grid.teams * grid.team * box.block_words);
  box.lists = scratch.take<uint64_t>(grid.teams * box.list_words);
  return box;
}

// Of K and V; 0: there are none.
pkv_dtype dtype_of(const pkv_step_args& a) {
  if (!has_attention(a)) return 0;
  if (a.attend.k > 0) return a.fetch.source_keys.dtype;
  return a.attend.part_count > 0 ? a.attend.parts[0].keys.dtype : 0;
}

// K and V of one token; before launch types may not be known, and count as f32.
struct TokenBytes {
  int64_t keys;
  int64_t values;
};
TokenBytes token_bytes(const pkv_step_args& a) {
  const pkv_geometry& geometry = *a.vote.codec.geometry;
  const bool has_rows = a.attend.k > 0 || a.attend.part_count == 0;
  const pkv_tensor& source = has_rows ? a.fetch.source_keys : a.attend.parts[0].keys;
  const int64_t each = source.ndim == 0 ? 4 : dtype_bytes(source.dtype);
  return {each * geometry.head_dim, each * geometry.value_dim};
}

// `room`: bytes of shared memory less FusedShared; `lines`: of the row cache.
Arena arena_of(const pkv_step_args& a, const Grid& grid, int64_t room, int32_t lines) {
  const pkv_geometry& geometry = *a.vote.codec.geometry;
  const int32_t group = group_of(a);
  Arena arena{};
  int64_t end = 0;
  const auto take = [&end](int64_t bytes) {
    const int64_t begin = end;
    end = gpu::round_up(end + bytes, 128);
    return static_cast<int32_t>(begin);
  };
  const int64_t samples = a.rerank.tail_samples / grid.team + kSampleSlack;
  const int32_t hits = hit_capacity(a.rerank.k);
  // Behind the list.
  take(4 * samples * group);
  take(4 * samples);
  take(int64_t{4} * kHitArrays * hits);
  take(int64_t{8} * lines);
  const int64_t behind = end;
  end = 0;
  if (has_attention(a)) {
    const TokenBytes bytes = token_bytes(a);
    arena.row_bytes = static_cast<int32_t>(bytes.keys + bytes.values);
    const int64_t most = kRowSlotBytes / arena.row_bytes;
    arena.row_slots = static_cast<int32_t>(most < hits ? most : hits);
    take(int64_t{arena.row_slots} * arena.row_bytes);
  }
  const int64_t slots_end = end;
  if (has_attention(a)) arena.join = take(int64_t{4} * kFusedWarps * 4 * geometry.head_dim);
  const int64_t length = gpu::round_up(a.vote.batch.max_length, grid.team) / grid.team;
  const int64_t key_bytes = 2 * gpu::round_up(length, kUnitKeys);
  const int64_t slack = 4 * 128;
  const int64_t most = a.select.candidates_stride + kMaxTies;
  int64_t capacity = (room - behind - slack - end) / (8 + 4 * group);
  capacity = capacity < most ? capacity : most;
  // Entries beside keys that begin at `first`.
  const auto beside = [&](int64_t first) {
    return (room - behind - slack - first - key_bytes) / 4;
  };
  arena.keys_fit = beside(0) >= kLeastEntries ? 1 : 0;
  arena.is_early = arena.keys_fit == 0 || beside(slots_end) >= capacity ? 1 : 0;
  if (arena.is_early != 0) arena.keys = static_cast<int32_t>(slots_end);
  if (arena.keys_fit != 0 && beside(arena.keys) < capacity) capacity = beside(arena.keys);
  arena.capacity = static_cast<int32_t>(capacity);
  arena.estimates = take(4 * capacity * group);
  arena.scores = take(4 * capacity);
  const int64_t keys_end = gpu::round_up(arena.keys + key_bytes, 128);
  if (arena.keys_fit != 0 && end < keys_end) end = keys_end;
  arena.list = take(4 * capacity);
  arena.samples = take(4 * samples * group);
  arena.sample_state = take(4 * samples);
  arena.hits = take(int64_t{4} * kHitArrays * hits);
  arena.tags = take(int64_t{8} * lines);
  arena.bytes = static_cast<int32_t>(end);
  return arena;
}

// A list has room for some entries, or for all there may be; what is more goes to scratch.
bool has_room(const pkv_step_args& a, const Arena& arena) {
  return arena.capacity >= kLeastEntries ||
         (arena.capacity > 0 && arena.capacity >= a.select.candidates_stride + kMaxTies);
}

Spill spill_of(const pkv_step_args& a, Scratch& scratch) {
  Spill spill{};
  const int64_t rows = rows_of(a);
  spill.key_stride = gpu::round_up(a.vote.batch.max_length, kUnitKeys);
  spill.entries = a.select.candidates_stride + kMaxTies;
  spill.lists = scratch.take<uint32_t>(rows * spill.entries);
  spill.estimates = scratch.take<float>(rows * spill.entries * group_of(a));
  spill.scores = scratch.take<float>(rows * spill.entries);
  return spill;
}

int64_t room_of(const pkv_step_args& a, int ordinal) {
  return attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, ordinal) -
         shared_bytes(a.vote.codec.geometry->head_dim);
}

// Keys of the longest rows may not lie in shared memory: a row cache is known at launch alone.
bool keys_may_spill(const pkv_step_args& a, const Grid& grid, int ordinal) {
  return arena_of(a, grid, room_of(a, ordinal), PKV_ROW_CACHE_LINES).keys_fit == 0;
}

int32_t cache_lines(const pkv_step_args& a) {
  const bool has_cache = has_attention(a) && a.attend.k > 0 && a.row_cache.data != nullptr;
  return has_cache ? a.row_cache.lines : 0;
}

void take_scratch(const pkv_step_args& a, int ordinal, Scratch& scratch, FusedArgs& out) {
  const Grid grid = grid_of(a, ordinal);
  out.mailbox = mailbox_of(a, grid, scratch);
  out.spill = spill_of(a, scratch);
  if (keys_may_spill(a, grid, ordinal)) {
    out.spill.keys = scratch.take<uint16_t>(rows_of(a) * out.spill.key_stride);
  }
}

FusedArgs args_of(const pkv_step_args& a, const Grid& grid) {
  const pkv_geometry& geometry = *a.vote.codec.geometry;
  FusedArgs f{};
  f.store = view_of(a.vote.store, geometry);
  f.codec = view_of(a.vote.codec);
  f.queries = view_of(a.vote.queries);
  f.rule = a.select.rule;
  for (int32_t i = 0; i < f.rule.steps; ++i) {
    f.quantile[i] = quantile_above(2e-6 * static_cast<double>(f.rule.ppm[i]));
  }
  f.rows = rows_of(a);
  f.team = grid.team;
  f.group = group_of(a);
  f.k = a.rerank.k;
  f.rank = a.rerank.rank;
  f.sequences = a.vote.batch.sequences;
  f.lengths = a.vote.batch.lengths;
  f.logit = {a.rerank.scale};
  f.candidates = a.select.candidates;
  f.candidates_stride = a.select.candidates_stride;
  f.candidate_counts = a.select.candidate_counts;
  f.estimates = a.rerank.estimates;
  f.positions = a.rerank.positions;
  f.scores = a.rerank.scores;
  f.counts = a.rerank.counts;
  f.rest_lse = a.rerank.rest_lse;
  f.sample_estimates = a.rerank.sample_estimates;
  const bool has_rest = a.rerank.rest_lse != nullptr || a.rerank.sample_estimates != nullptr;
  f.tail_samples = has_rest ? a.rerank.tail_samples : 0;
  f.tail = PKV_TAIL_DROP;
  if (!has_attention(a)) return f;
  f.has_attention = 1;
  f.tail = a.attend.tail;
  f.part_count = a.attend.part_count;
  for (int32_t p = 0; p < f.part_count; ++p) f.runs[p] = run_of(a.attend.parts[p]);
  if (a.attend.k > 0) {
    f.row_keys = source_of(a.fetch.source_keys, a.fetch.key_pages);
    f.row_values = source_of(a.fetch.source_values, a.fetch.value_pages);
    f.row_cache = a.row_cache;
  }
  const TokenBytes bytes = token_bytes(a);
  f.key_bytes = static_cast<int32_t>(bytes.keys);
  f.value_bytes = static_cast<int32_t>(bytes.values);
  f.dtype = dtype_of(a);
  f.output = view_of(a.attend.output);
  f.lse = a.attend.lse;
  f.sink_logits = a.attend.sink_logits;
  f.value_sums = a.attend.value_sums;
  f.good_counts = a.attend.good_counts;
  return f;
}

#if defined(PKV_FUSED_MARKS)
// Phase times of the last launch, as the program ends: mean over blocks, in cycles.
long long* marks() {
  constexpr int kBlocks = 256;
  constexpr int kEach = 16;
  static long long* memory = [] {
    void* fresh = nullptr;
    (void)cudaMalloc(&fresh, kBlocks * kEach * sizeof(long long));
    (void)cudaMemset(fresh, 0, kBlocks * kEach * sizeof(long long));
    std::atexit([] {
      static long long all[kBlocks * kEach];
      (void)cudaMemcpy(all, marks(), sizeof all, cudaMemcpyDefault);
      std::fprintf(stderr, "marks:");
      for (int i = 1; i < kEach; ++i) {
        double sum = 0.0;
        double most = 0.0;
        int count = 0;
        for (int block = 0; block < kBlocks; ++block) {
          const long long* own = all + block * kEach;
          if (own[0] == 0 || own[i] == 0) continue;
          sum += static_cast<double>(own[i] - own[0]);
          most = std::max(most, static_cast<double>(own[i] - own[0]));
          ++count;
        }
        std::fprintf(stderr, " %d:%.0f(%.0f)", i, count > 0 ? sum / count : 0.0, most);
      }
      std::fprintf(stderr, "\n");
    });
    return static_cast<long long*>(fresh);
  }();
  return memory;
}
#endif

}  // namespace

const char* why_not_fused_shape(const pkv_step_args& a, int ordinal) {
  const pkv_geometry& geometry = *a.vote.codec.geometry;
  if (attribute(cudaDevAttrComputeCapabilityMajor, ordinal) != 9) return "needs a device of sm_90";
  if (attribute(cudaDevAttrCooperativeLaunch, ordinal) == 0) return "needs cooperative launches";
  const int32_t d = geometry.head_dim;
  if (d != 64 && d != 128 && d != 256) return "head_dim must be 64, 128 or 256";
  if (geometry.codec != PKV_CODEC_SCALAR4) return "codec must be scalar4";
  if (geometry.vote != PKV_VOTE_GRADED) return "vote must be graded";
  if (a.vote.vote_group != PKV_VOTE_GROUP_SUM) return "vote_group must be sum";
  if (group_of(a) > kFusedHeads) return "at most 8 query heads to a KV head";
  if (a.rerank.k > kFusedHits) return "k must be at most 2,048";
  if (a.rerank.share != 0.0) return "share must be 0";
  if (a.rerank.soft_cap != 0.0F) return "soft_cap must be 0";
  if (a.rerank.weigh_norms != 0) return "scores must not be weighed by norms";
  if (a.rerank.tail_samples > kFusedSamples) return "tail_samples must be at most 1,024";
  if (rows_of(a) == 0) return "there are no rows";
  const Grid grid = grid_of(a, ordinal);
  if (rows_of(a) > grid.teams * kMostRounds) return "too many rows";
  if (a.vote.batch.max_length / grid.team >= int64_t{1} << 27) return "rows are too long";
  if (!has_room(a, arena_of(a, grid, room_of(a, ordinal), 0))) return "shared memory is too small";
  if (!has_attention(a)) return nullptr;
  if (a.attend.tail == PKV_TAIL_SKETCH) return "tail must be drop, mean or sampled";
  if (geometry.value_dim > d) return "value_dim must be at most head_dim";
  return nullptr;
}

const char* why_not_fused_types(const pkv_step_args& a, int ordinal) {
  if (!has_attention(a)) return nullptr;
  const int32_t lines = cache_lines(a);  // without any, the shape has said it
  if (lines > 0 && !has_room(a, arena_of(a, grid_of(a, ordinal), room_of(a, ordinal), lines))) {
    return "shared memory is too small for the tags of the row cache";
  }
  const pkv_dtype dtype = dtype_of(a);
  bool is_one = a.attend.k == 0 || a.fetch.source_values.dtype == dtype;
  for (int32_t p = 0; p < a.attend.part_count; ++p) {
    is_one = is_one && a.attend.parts[p].keys.dtype == dtype;
    is_one = is_one && a.attend.parts[p].values.dtype == dtype;
  }
  return is_one ? nullptr : "all K and V must have one element type";
}

int64_t fused_scratch_bytes(const pkv_step_args& args, int ordinal) {
  Scratch scratch(nullptr);
  FusedArgs unused{};
  take_scratch(args, ordinal, scratch, unused);
  return scratch.bytes();
}

gpuError_t launch_fused(const pkv_step_args& args, int ordinal, void* scratch, gpuStream_t stream) {
  const Grid grid = grid_of(args, ordinal);
  FusedArgs f = args_of(args, grid);
  Scratch pieces(scratch);
  take_scratch(args, ordinal, pieces, f);
  const int32_t d = args.vote.codec.geometry->head_dim;
  f.arena = arena_of(args, grid, room_of(args, ordinal), cache_lines(args));
#if defined(PKV_FUSED_MARKS)
  f.marks = marks();
#endif
  LaunchShape shape;
  shape.grid_x = static_cast<unsigned>(grid.team);
  shape.grid_y = static_cast<unsigned>(grid.teams);
  shape.threads = kFusedThreads;
  shape.dynamic_bytes = shared_bytes(d) + f.arena.bytes;
  shape.is_cooperative = true;
  return with_dim(d, [&](auto dim) {
    constexpr int kDim = dim();
    if (f.dtype == PKV_DTYPE_F32) {
      return f.group <= 4 ? launch_fused_shaped<kDim, 1, true>(f, shape, stream)
                          : launch_fused_shaped<kDim, 2, true>(f, shape, stream);
    }
    return f.group <= 4 ? launch_fused_shaped<kDim, 1, false>(f, shape, stream)
                        : launch_fused_shaped<kDim, 2, false>(f, shape, stream);
  });
}

}  // namespace pkv::cuda
