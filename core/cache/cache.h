// The KV cache: layers that share pages, slots of sequences, one call at a time.
// pariskv_cache.h says what each call does. Not here: what happens within a layer (layer.h,
// step.h).
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/cache/cache_file.h"
#include "core/cache/layer.h"
#include "core/cache/shape.h"
#include "core/cache/step.h"
#include "core/runtime/stream.h"
#include "pariskv/pariskv.h"

namespace pkv {

class PkvFile;        // core/index/file_sections.h
class PkvWriter;      // core/index/file_writer.h
class SectionStream;  // core/index/file_sections.h

class Cache {
 public:
  static absl::StatusOr<std::unique_ptr<Cache>> create(std::shared_ptr<const Device> device,
                                                       const Config& config,
                                                       const pkv_cache_desc& desc);
  ~Cache();

  absl::Status reserve(const Stream& stream, int64_t tokens, int64_t total_tokens,
                       int64_t step_tokens);
  // cache.cpp
  absl::StatusOr<int32_t> add();
  absl::Status remove(const Stream& stream, int32_t sequence);
  absl::Status reset(const Stream& stream, int32_t sequence);
  absl::Status truncate(const Stream& stream, int32_t sequence, int64_t tokens);
  absl::StatusOr<int32_t> fork(const Stream& stream, int32_t source, int64_t tokens);
  absl::StatusOr<int64_t> length(int32_t layer, int32_t sequence) const;
  absl::StatusOr<pkv_cache_regions> regions(int32_t layer, int32_t sequence) const;
  absl::Status refit(const Stream& stream, int32_t layer, int32_t sequence,
                     const pkv_tensor* queries);
  absl::Status import_codec(int32_t layer, const Codec& codec);
  absl::StatusOr<std::shared_ptr<const Codec>> codec(int32_t layer, int32_t sequence) const;

  // cache_tokens.cpp
  absl::Status append(const Stream& stream, int32_t layer, const pkv_cache_batch& batch,
                      const pkv_tensor& keys, const pkv_tensor* values, const pkv_tensor* queries);
  // cache_device.cpp
  absl::Status flush(const Stream& stream);
  absl::Status advance(const Stream& stream, int32_t layer, const pkv_cache_batch& batch);

  // cache_tokens.cpp
  absl::StatusOr<int64_t> candidates(int64_t tokens) const;
  absl::Status retrieve(const Stream& stream, int32_t layer, const pkv_cache_batch& batch,
                        const pkv_tensor& query, pkv_cache_hits& hits);
  absl::Status fetch(const Stream& stream, int32_t layer, const pkv_cache_batch& batch,
                     const pkv_cache_hits& hits, const pkv_rows& rows);
  // `hits` may be NULL.
  absl::Status attend(const Stream& stream, int32_t layer, const pkv_cache_batch& batch,
                      const pkv_cache_attention& attention, pkv_cache_hits* hits);
  absl::Status decode_step(const Stream& stream, int32_t layer, const pkv_cache_batch& batch,
                           const pkv_tensor& keys, const pkv_tensor* values,
                           const pkv_cache_attention& attention, pkv_cache_hits* hits);

  // cache_pages.cpp
  absl::Status bind_pool(int32_t layer, const pkv_cache_pool& pool);
  absl::Status append_pages(const Stream& stream, int32_t layer, const pkv_cache_blocks& blocks,
                            const pkv_tensor* queries);

  // cache_save.cpp; sequence -1: all in use. cache_load.cpp: the slots, at most `room`.
  absl::Status save_sync(const Stream& stream, int32_t sequence, const std::string& path,
                         bool may_overwrite);
  absl::StatusOr<std::vector<int32_t>> load_sync(const Stream& stream, const std::string& path,
                                                 int32_t room);

  // cache_bytes.cpp. query_type 0: appends bring no queries.
  static absl::StatusOr<pkv_cache_usage> bytes(std::shared_ptr<const Device> device,
                                               const Config& config, const pkv_cache_desc& desc,
                                               std::span<const int64_t> lengths,
                                               pkv_dtype query_type);

  // cache_look.cpp
  absl::Status export_sync(const Stream& stream, int32_t layer, int32_t sequence, int32_t kv_head,
                           int64_t begin, int64_t count, const pkv_records& out);
  absl::Status rows_sync(const Stream& stream, int32_t layer, int32_t sequence, int64_t begin,
                         int64_t count, const pkv_rows& out);
  absl::Status sums_sync(const Stream& stream, int32_t layer, int32_t sequence, double* value_sums,
                         int64_t* good_counts, int32_t* occupancy);
  absl::StatusOr<pkv_cache_stats> stats_sync(const Stream& stream);
  absl::StatusOr<pkv_cache_usage> usage() const;
  std::string describe() const;

 private:
  struct Slot {
    bool is_used = false;
  };
  // A batch that has been checked.
  struct Batch {
    std::vector<int32_t> sequences;
    std::vector<int64_t> counts;
    int64_t tokens = 0;
  };
  struct Tensors {
    std::optional<TensorView> keys, values, queries, query, output;
  };

  // Identity: of sequences, and of tokens of a page.
  static HostNumbers::Patterns patterns_of(const CacheShape& shape) {
    const pkv_cache_desc& desc = shape.desc;
    return {std::max<int64_t>({desc.sequences, desc.page_tokens, desc.sink}), desc.kv_heads,
            desc.page_tokens, desc.query_heads, QueryLog::kBlock};
  }

  explicit Cache(CacheShape shape) : shape_(std::move(shape)) {}

  // cache_device.cpp. Every call that enqueues: comes behind the call before it. Where tables lie
  // in host memory that has passed then, so what it read may be written. A layer: the call reads no
  // other. kAllowed: also while the stream is captured.
  static constexpr int32_t kAllLayers = -1;
  enum class Capture { kRefused, kAllowed };
  absl::Status begin(const Stream& stream, int32_t layer = kAllLayers,
                     Capture capture = Capture::kRefused);
  // The host may then read what was written, and free what was read.
  absl::Status begin_sync(const Stream& stream);
  absl::Status end(const Stream& stream, const absl::Status& status);
  bool is_on_device() const { return Words::are_served(*shape_.device); }
  absl::Status wait_for_flush(const Stream& stream, int32_t layer);
  absl::Status check_faults();
  absl::Status check_captured(int32_t layer, bool appends) const;
  absl::Status append_captured(const Stream& stream, int32_t layer, bool is_step);
  absl::Status check_advance(int32_t layer);
  absl::Status check_layer(int32_t layer) const;
  absl::Status check_sequence(int64_t sequence) const;
  absl::Status check_slot(int64_t sequence) const;
  Layer& layer(int32_t number) { return *layers_[static_cast<std::size_t>(number)]; }
  const Layer& layer(int32_t number) const { return *layers_[static_cast<std::size_t>(number)]; }
  absl::StatusOr<int32_t> free_slot() const;
  absl::Status clear(const Stream& stream, int32_t sequence);
  absl::Status end_append(const Stream& stream, int32_t number, const absl::Status& status);

  // cache_tokens.cpp
  absl::Status check_batch(const pkv_cache_batch& batch);
  absl::Status check_input(int32_t layer, const pkv_tensor& keys, const pkv_tensor* values,
                           const pkv_tensor* queries);
  absl::Status prepare_queries();
  absl::Status check_query(const pkv_tensor& query, const pkv_tensor* output);
  absl::Status check_attention(int32_t layer, const pkv_cache_attention& attention,
                               const pkv_cache_hits* hits, bool appends);
  StepCall step_call(const pkv_cache_attention& attention, const pkv_cache_hits* hits,
                     bool appends) const;
  absl::Status append_checked(const Stream& stream, int32_t layer);
  absl::Status attend_checked(const Stream& stream, int32_t layer,
                              const pkv_cache_attention& attention, pkv_cache_hits* hits,
                              bool appends);
  absl::Status check_blocks(int32_t layer, const pkv_cache_blocks& blocks);
  absl::Status reserve_for(const Stream& stream, int32_t layer, const StepCall& call);

  // cache_save.cpp
  FileCache file_cache(int32_t sequences) const;
  FileGeometry file_geometry(int32_t sequences) const;
  int64_t fit_numbers() const;  // floats of one fit in a file
  std::vector<float> numbers_of(const CodecParams* numbers) const;
  RowRun chunk_run(std::byte* chunk, int64_t tokens, int64_t done, int64_t count) const;
  absl::Status save_state(const Stream& stream, const Layer& layer, const SequenceState& state,
                          PkvWriter& file);
  // cache_load.cpp
  absl::Status compare_file(const PkvFile& file, const FileGeometry& geometry,
                            const FileCache& cache) const;
  absl::Status load_layers(const PkvFile& file) const;
  absl::Status load_states(const PkvFile& file, const FileCache& cache,
                           std::vector<FileState>& states) const;
  absl::Status load_fits(const PkvFile& file, SectionStream& section, Layer& layer,
                         int32_t sequence, const FileState& state);
  absl::Status load_queries(const Stream& stream, const PkvFile& file, SectionStream& section,
                            Layer& layer, int32_t sequence, const FileState& state,
                            pkv_dtype query_type);
  absl::Status load_rows(const Stream& stream, SectionStream& section, Layer& layer,
                         int32_t sequence, int64_t tokens);

  CacheShape shape_;
  mutable std::mutex mutex_;
  std::unique_ptr<CachePools> pools_;
  std::vector<std::unique_ptr<Layer>> layers_;
  std::vector<Slot> slots_;
  Buffer sink_logits_;
  StepScratch scratch_;
  std::optional<Event> last_;
  bool has_last_ = false;
  // Of each layer, the end of its last flush; what that uses, and whether later calls have come
  // behind it.
  std::vector<Event> flushed_;
  std::vector<bool> awaits_flush_;
  std::optional<HostNumbers> flush_numbers_;
  Buffer flush_scratch_;
  bool is_captured_ = false;  // the call in progress
  // Of the call in progress; kept so that a step does not allocate.
  Batch batch_;
  Tensors tensors_;
  int64_t appended_ = 0;
  int64_t steps_ = 0;
};

}  // namespace pkv
