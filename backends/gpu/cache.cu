// Launches of what a cache does besides the stages. Nothing is read from host memory once these
// return: what a launch needs goes with it by value.
#include "backends/gpu/cache.h"

#include "backends/gpu/cache.cuh"
#include "backends/gpu/device.h"

namespace PKV_GPU_NS {
namespace {

// Calls body(entries) for every kEntries entries; `first` of the first one is that of the call.
template <class Body>
gpuError_t for_entries(int32_t batch, const int32_t* sequences, const int64_t* counts,
                       const Body& body) {
  BatchEntries entries{};
  int64_t first = 0;
  for (int32_t done = 0; done < batch; done += entries.count) {
    entries.count = batch - done < kEntries ? batch - done : kEntries;
    for (int32_t i = 0; i < entries.count; ++i) {
      entries.sequences[i] = sequences[done + i];
      entries.firsts[i] = first;
      first += counts[done + i];
    }
    entries.firsts[entries.count] = first;
    const gpuError_t error = body(entries);
    if (error != gpuSuccess) return error;
  }
  return gpuSuccess;
}

void add_side(PlaceArgs& args, const pkv_tensor& source, const pkv_pages& sink,
              const pkv_pages& rows, const pkv_pages& recent) {
  if (source.ndim == 0) return;
  args.sides[args.side_count++] = {view_of(source), sink, rows, recent,
                                   source.shape[2] * dtype_bytes(source.dtype)};
}

}  // namespace

pkv_status memory_words(pkv_backend_device* device, pkv_backend_stream* stream, int32_t count,
                        void* const* targets, const uint64_t* values) {
  return run_stage(device, stream, "words", [&](gpuStream_t s) {
    WordArgs args{};
    for (int32_t done = 0; done < count; done += args.count) {
      args.count = count - done < kWords ? count - done : kWords;
      for (int32_t i = 0; i < args.count; ++i) {
        args.targets[i] = static_cast<uint64_t*>(targets[done + i]);
        args.values[i] = values[done + i];
      }
      LaunchShape shape;
      shape.threads = kCacheThreads;
      const gpuError_t error = launch("write_words", write_words<kCacheThreads>, shape, s, args);
      if (error != gpuSuccess) return error;
    }
    return gpuSuccess;
  });
}

pkv_status place(pkv_backend_device* device, pkv_backend_stream* stream, const pkv_place_args* a) {
  return run_stage(device, stream, "place", [&](gpuStream_t s) {
    PlaceArgs args{};
    const bool has_recent = a->struct_size >= sizeof(pkv_place_args);  // else an older core's
    add_side(args, a->keys, a->sink_keys, a->row_keys, has_recent ? a->recent_keys : pkv_pages{});
    add_side(args, a->values, a->sink_values, a->row_values,
             has_recent ? a->recent_values : pkv_pages{});
    args.kv_heads = a->kv_heads;
    args.sink = a->sink;
    args.states = a->states;
    return for_entries(a->batch, a->sequences, a->counts, [&](const BatchEntries& entries) {
      args.entries = entries;
      const int64_t items =
          (entries.firsts[entries.count] - entries.firsts[0]) * a->kv_heads * args.side_count;
      LaunchShape shape;
      shape.grid_x = grid_tiles(items, kCacheThreads / kFetchLanes, int64_t{1} << 16);
      shape.threads = kCacheThreads;
      return launch("place_rows", place_rows<kCacheThreads>, shape, s, args);
    });
  });
}

pkv_status advance(pkv_backend_device* device, pkv_backend_stream* stream,
                   const pkv_advance_args* a) {
  return run_stage(device, stream, "advance", [&](gpuStream_t s) {
    AdvanceArgs args{};
    args.call = *a;
    args.call.sequences = nullptr;
    args.call.counts = nullptr;
    return for_entries(a->batch, a->sequences, a->counts, [&](const BatchEntries& entries) {
      args.entries = entries;
      LaunchShape shape;
      shape.threads = kCacheThreads;
      return launch("advance_states", advance_states<kCacheThreads>, shape, s, args);
    });
  });
}

}  // namespace PKV_GPU_NS
