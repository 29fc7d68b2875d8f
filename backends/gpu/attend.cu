// Launches of stage attend: the slots, and their merge.
#include "backends/gpu/attend.h"

#include "backends/gpu/check.h"
#include "backends/gpu/device.h"
#include "backends/gpu/merge.cuh"
#include "backends/gpu/query.h"
#include "backends/gpu/stages.h"
#include "core/format/records.h"
#include PKV_GPU_TRAITS

namespace PKV_GPU_NS {
namespace {

// Widest vectors and largest groups of the shapes.
inline constexpr int32_t kWidths[] = {64, 128, 256};

int32_t width_of(const pkv_geometry& g) {
  return g.head_dim > g.value_dim ? g.head_dim : g.value_dim;
}

// Heads per pass: registers hold 8 elements of q and of the output per head and chunk.
int32_t heads_per_pass(int32_t width, int32_t group) {
  if (width > kWidths[2]) return 2;
  if (group == 1) return 1;
  return group <= 4 || width > kWidths[1] ? 4 : 8;
}

// Calls f with the AttendShape of a width and a number of heads per pass.
template <class F>
gpuError_t with_shape(int32_t width, int32_t heads, const F& f) {
  if (width <= kWidths[0]) {
    if (heads == 1) return f(AttendShape<8, 1, 1>{});
    return heads == 4 ? f(AttendShape<8, 1, 4>{}) : f(AttendShape<8, 1, 8>{});
  }
  if (width <= kWidths[1]) {
    if (heads == 1) return f(AttendShape<16, 1, 1>{});
    return heads == 4 ? f(AttendShape<16, 1, 4>{}) : f(AttendShape<16, 1, 8>{});
  }
  if (width <= kWidths[2]) {
    return heads == 1 ? f(AttendShape<32, 1, 1>{}) : f(AttendShape<32, 1, 4>{});
  }
  return f(AttendShape<32, 3, 2>{});
}

bool reads_samples(int32_t tail) { return tail == PKV_TAIL_SKETCH || tail == PKV_TAIL_SAMPLED; }

int32_t group_of(const pkv_attend_args& a) { return a.query_heads / a.codec.geometry->kv_heads; }

int64_t rows_of(const pkv_attend_args& a) {
  return int64_t{a.batch.batch} * a.codec.geometry->kv_heads;
}

int64_t passes_of(const pkv_attend_args& a) {
  const int32_t heads = heads_per_pass(width_of(*a.codec.geometry), group_of(a));
  return (group_of(a) + heads - 1) / heads;
}

// Never fewer for larger arguments, so that scratch for the largest is enough.
AttendSlots slots_of(const pkv_attend_args& a) {
  const int64_t items = rows_of(a) * passes_of(a);
  const int64_t most =
      items > 0 && Traits::kAttendBlocks > items ? Traits::kAttendBlocks / items : 1;
  const auto shares = [most](int64_t count, int64_t per_slot) {
    const int64_t wanted = (count + per_slot - 1) / per_slot;
    return static_cast<int32_t>(wanted < most ? wanted : most);
  };
  int64_t dense = 0;
  for (int32_t p = 0; p < a.part_count; ++p) dense += a.parts[p].keys.shape[2];
  AttendSlots slots{};
  slots.dense = shares(dense, Traits::kAttendTokens);
  slots.rows = shares(a.k, Traits::kAttendRows);
  if (a.tail != PKV_TAIL_DROP) {
    slots.candidates = shares(a.candidates_stride, Traits::kAttendCandidates);
  }
  if (reads_samples(a.tail)) slots.samples = shares(a.tail_samples, Traits::kAttendSamples);
  return slots;
}

// The fetched rows, copied.
TokenRun rows_run(const pkv_attend_args& a) {
  TokenRun run{};
  run.keys = source_of(a.row_keys, {});
  run.values = source_of(a.row_values, {});
  run.tokens = a.k;
  run.counts = a.counts;
  return run;
}

TailArgs tail_of(const pkv_attend_args& a) {
  TailArgs tail{};
  tail.kind = a.tail;
  tail.k = a.k;
  tail.sample_most = a.tail_samples;
  tail.query_heads = a.query_heads;
  if (reads_samples(a.tail)) tail.store = view_of(a.store, *a.codec.geometry);
  tail.lengths = a.batch.lengths;
  tail.positions = a.positions;
  tail.counts = a.counts;
  tail.candidates = a.candidates;
  tail.candidates_stride = a.candidates_stride;
  tail.candidate_counts = a.candidate_counts;
  tail.estimates = a.estimates;
  tail.sample_estimates = a.sample_estimates;
  return tail;
}

gpuError_t launch_slots(const pkv_attend_args& a, const TokenRun& rows,
                        const pkv_row_cache_args& row_cache, const int32_t* bad,
                        const Partials& partials, gpuStream_t stream) {
  AttendArgs args{};
  args.codec = view_of(a.codec);
  args.queries = view_of(a.queries);
  for (int32_t p = 0; p < a.part_count; ++p) args.runs[p] = run_of(a.parts[p]);
  args.runs[kRowsRun] = rows;
  args.part_count = a.part_count;
  args.group = group_of(a);
  args.rows = rows_of(a);
  args.bad = bad;
  args.sequences = a.batch.sequences;
  args.logit = {a.scale, a.soft_cap};
  args.slots = slots_of(a);
  args.partials = partials;
  args.tail = tail_of(a);
  args.row_cache = row_cache;
  LaunchShape shape;
  shape.grid_x = grid_tiles(args.rows * passes_of(a), 1);
  shape.grid_y = static_cast<unsigned>(args.slots.all());
  shape.threads = Traits::kAttendThreads;
  const int32_t width = width_of(*a.codec.geometry);
  return with_shape(width, heads_per_pass(width, args.group), [&](auto of) {
    return launch("attend_slots", attend_slots_of<Traits, decltype(of)>, shape, stream, args);
  });
}

gpuError_t launch_merge(const pkv_attend_args& a, const int32_t* bad, const Partials& partials,
                        gpuStream_t stream) {
  MergeArgs args{};
  args.codec = view_of(a.codec);
  args.slots = slots_of(a);
  args.partials = partials;
  args.output = view_of(a.output);
  args.lse = a.lse;
  args.sink_logits = a.sink_logits;
  args.bad = bad;
  args.sequences = a.batch.sequences;
  args.lengths = a.batch.lengths;
  args.query_heads = a.query_heads;
  args.group = group_of(a);
  args.heads = int64_t{a.batch.batch} * a.query_heads;
  args.tail = a.tail;
  args.sample_most = a.tail_samples;
  args.rest_lse = a.rest_lse;
  args.value_sums = a.value_sums;
  args.good_counts = a.good_counts;
  LaunchShape shape;
  shape.grid_y = grid_rows(args.heads);
  shape.threads = Traits::kMergeThreads;
  shape.dynamic_bytes = merge_bytes(a.codec.geometry->value_dim, args.slots.all());
  return launch("merge_slots", merge_slots<Traits>, shape, stream, args);
}

pkv_status check_tail(const pkv_host* host, const pkv_attend_args& a) {
  const pkv_geometry& geometry = *a.codec.geometry;
  pkv_status status = check_range(host, "tail", a.tail, PKV_TAIL_DROP, PKV_TAIL_SAMPLED);
  if (status != PKV_OK || !reads_samples(a.tail)) return status;
  if (geometry.sketch_bits == 0) {
    return backend::refuse(host, PKV_UNIMPLEMENTED,
                           "tail=%d with sketch_bits=0: the records need a sketch of 2 or 4",
                           a.tail);
  }
  status = check_range(host, "tail_samples", a.tail_samples, 1, format::kMaxTailSamples);
  if (status != PKV_OK || a.tail != PKV_TAIL_SKETCH) return status;
  return check_range(host, "tail=sketch with sketch_stride", geometry.sketch_stride, 1, 1);
}

pkv_status check_vectors(const pkv_host* host, const pkv_tensor& keys, const pkv_tensor& values) {
  const pkv_status status = check_floats(host, "attended keys", keys);
  return status != PKV_OK ? status : check_floats(host, "attended values", values);
}

struct Temporaries {
  PreparedQueries queries;
  Partials partials;
};

Temporaries take_temporaries(Scratch& scratch, const pkv_attend_args& a) {
  Temporaries result{};
  result.queries = take_prepared_queries(scratch, *a.codec.geometry, rows_of(a), a.query_heads);
  result.partials = take_partials(scratch, a);
  return result;
}

pkv_status supports(pkv_backend_device* device, const pkv_attend_args* args) {
  return check_attend(device_of(device).host, *args, args->row_keys, args->row_values);
}

pkv_status scratch_bytes(pkv_backend_device* /*device*/, const pkv_attend_args* args,
                         int64_t* out) {
  Scratch scratch(nullptr);
  take_temporaries(scratch, *args);
  *out = scratch.bytes();
  return PKV_OK;
}

pkv_status run(pkv_backend_device* device, pkv_backend_stream* stream, const pkv_attend_args* args,
               void* scratch) {
  return run_stage(device, stream, "attend", [&](gpuStream_t s) {
    Scratch pieces(scratch);
    const Temporaries temporaries = take_temporaries(pieces, *args);
    const gpuError_t error =
        launch_prepare_queries(args->codec, args->queries, rows_of(*args), temporaries.queries, s);
    if (error != gpuSuccess) return error;
    return launch_attend(*args, rows_run(*args), {}, temporaries.queries.bad, temporaries.partials,
                         s);
  });
}

}  // namespace

pkv_status check_attend(const pkv_host* host, const pkv_attend_args& args,
                        const pkv_tensor& row_keys, const pkv_tensor& row_values) {
  const pkv_geometry& geometry = *args.codec.geometry;
  pkv_status status = check_queries(host, args.codec, args.query_heads, args.queries);
  if (status != PKV_OK) return status;
  status =
      check_range(host, "value_dim", geometry.value_dim, format::kMinHeadDim, format::kMaxHeadDim);
  if (status != PKV_OK) return status;
  status = check_floats(host, "output", args.output);
  if (status != PKV_OK) return status;
  status = check_range(host, "part_count", args.part_count, 0, PKV_MAX_PARTS);
  if (status != PKV_OK) return status;
  for (int32_t p = 0; p < args.part_count; ++p) {
    status = check_vectors(host, args.parts[p].keys, args.parts[p].values);
    if (status != PKV_OK) return status;
  }
  status = check_range(host, "k", args.k, 0, format::kMaxK);
  if (status != PKV_OK) return status;
  if (args.k > 0) {
    status = check_vectors(host, row_keys, row_values);
    if (status != PKV_OK) return status;
  }
  status = check_tail(host, args);
  if (status != PKV_OK) return status;
  return check_logits(host, args.scale, args.soft_cap);
}

bool reads_rows_once(const pkv_attend_args& args) { return passes_of(args) == 1; }

Partials take_partials(Scratch& scratch, const pkv_attend_args& a) {
  const int64_t heads = int64_t{a.batch.batch} * a.query_heads;
  Partials partials{};
  partials.slots = slots_of(a).all();
  partials.stats = scratch.take<PartialStats>(heads * partials.slots);
  partials.values = scratch.take<float>(heads * partials.slots * a.codec.geometry->value_dim);
  return partials;
}

gpuError_t launch_attend(const pkv_attend_args& args, const TokenRun& rows,
                         const pkv_row_cache_args& row_cache, const int32_t* bad,
                         const Partials& partials, gpuStream_t stream) {
  const gpuError_t error = launch_slots(args, rows, row_cache, bad, partials, stream);
  return error == gpuSuccess ? launch_merge(args, bad, partials, stream) : error;
}

pkv_attend_slots attend_slots() { return {supports, scratch_bytes, run}; }

}  // namespace PKV_GPU_NS
