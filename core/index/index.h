// Index: key records of many sequences on a device, with what append keeps beside them.
// docs/algorithm.md, section 3. Not here: the file (index_file.cpp), the search (core/plan).
//
// Rows (sequence, KV head) have a fixed place in one buffer; a sequence's rows are neighbours.
// Lengths exist twice: the host's decide, the device's follow in stream order.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/codec/codec.h"
#include "core/index/host_stage.h"
#include "core/index/index_sizes.h"
#include "core/runtime/buffer.h"
#include "core/runtime/device.h"
#include "core/runtime/stream.h"
#include "pariskv/pariskv.h"
#include "pariskv/pariskv_backend.h"

namespace pkv {

class PkvReader;  // file_reader.h

class Index {
 public:
  static absl::StatusOr<std::shared_ptr<Index>> create(std::shared_ptr<const Device> device,
                                                       std::shared_ptr<const Codec> codec,
                                                       int32_t sequences, int64_t capacity);

  const std::shared_ptr<const Device>& device() const { return device_; }
  const std::shared_ptr<const Codec>& codec() const { return codec_; }
  const pkv_geometry& geometry() const { return codec_->geometry(); }
  int32_t sequences() const { return sizes_.sequences; }
  int64_t capacity() const { return sizes_.capacity; }
  // OUT_OF_RANGE names the sequence and the range.
  absl::Status check_sequence(int64_t sequence) const;

  // 0 <= sequence < sequences().
  int64_t length(int32_t sequence) const { return state_[sequence].length.load(); }
  // Whether every token of the sequence came with values.
  bool has_values(int32_t sequence) const { return !state_[sequence].lacks_values.load(); }
  // Grows whenever positions of the sequence may have come to name other tokens.
  int64_t generation(int32_t sequence) const { return state_[sequence].generation.load(); }
  // UNAVAILABLE names a sequence whose sums or length on the device are neither those of before nor
  // those of after a call that failed, since the device failed again when they were to be put back.
  // Its reset, or a restore, makes them good.
  absl::Status check_whole() const;

  // kEnqueue isolates bad keys. kSync waits, and refuses them if the codec's options say so. An
  // append that fails leaves the index as it was.
  enum class Mode { kEnqueue, kSync };
  absl::Status append(const Stream& stream, int32_t sequence, const pkv_tensor& keys,
                      const pkv_tensor* values, Mode mode);
  absl::Status reset(const Stream& stream, int32_t sequence);

  absl::StatusOr<pkv_index_stats> stats_sync(const Stream& stream) const;
  // Into host planes that hold `count` records each.
  absl::Status export_sync(const Stream& stream, int32_t sequence, int32_t kv_head, int64_t begin,
                           int64_t count, const pkv_records& out) const;

  // docs/format.md
  absl::Status save_sync(const Stream& stream, const std::string& path, bool may_overwrite) const;
  static absl::StatusOr<std::shared_ptr<Index>> load_sync(std::shared_ptr<const Device> device,
                                                          const Stream& stream,
                                                          const std::string& path);
  absl::Status restore_sync(const Stream& stream, const std::string& path);

  // What the stages read; device pointers, valid until the next restore_sync.
  pkv_store store() const;
  const int32_t* occupancy() const { return content_.occupancy.as<int32_t>(); }  // NULL: graded
  const double* value_sums() const { return content_.value_sums.as<double>(); }
  const int64_t* good_counts() const { return content_.good_counts.as<int64_t>(); }
  const int64_t* device_lengths() const { return content_.lengths.as<int64_t>(); }  // [sequences]
  const int32_t* identity() const { return constants_.as<int32_t>(); }  // 0 .. sequences-1

 private:
  // What a file replaces as a whole.
  struct Content {
    Buffer records;      // [rows, row_bytes]
    Buffer occupancy;    // [rows, d/8, 256] int32; tier only
    Buffer value_sums;   // [rows, dv] double; dv > 0 only
    Buffer good_counts;  // [rows] int64
    Buffer lengths;      // [sequences] int64
  };
  struct SequenceState {
    std::atomic<int64_t> length{0};
    std::atomic<bool> lacks_values{false};
    std::atomic<int64_t> generation{0};
    std::atomic<bool> is_half{false};
  };
  // The rows of one sequence in one of the sums, and where their copy is while append works.
  struct SumPart {
    std::byte* data;
    int64_t bytes;  // 0: the index has no such sums
    std::byte* backup;
  };
  struct AppendInput;

  Index(std::shared_ptr<const Device> device, std::shared_ptr<const Codec> codec,
        const IndexSizes& sizes)
      : device_(std::move(device)), codec_(std::move(codec)), sizes_(sizes) {}

  absl::Status check_stream(const Stream& stream) const;
  absl::StatusOr<Content> create_content() const;
  static absl::Status clear_content(const Stream& stream, const Content& content);
  absl::Status create_constants(const Stream& stream);

  absl::StatusOr<AppendInput> check_append(int32_t sequence, const pkv_tensor& keys,
                                           const pkv_tensor* values) const;
  absl::Status encode(const Stream& stream, int32_t sequence, int64_t begin,
                      const AppendInput& input, bool refuses_bad);
  absl::Status check_first_bad(const Stream& stream, int32_t sequence) const;
  std::array<SumPart, 3> sum_parts(int32_t sequence) const;
  absl::Status write_length(const Stream& stream, int32_t sequence, int64_t length) const;
  absl::Status begin_append(const Stream& stream, int32_t sequence);
  absl::Status mark_appended(const Stream& stream);
  void undo_append(const Stream& stream, int32_t sequence) noexcept;
  void set_half(std::size_t sequence, bool is_half) noexcept;
  absl::Status clear_sequence(const Stream& stream, int32_t sequence) const;

  absl::Status read_records(const Stream& stream, const PkvReader& file,
                            const std::vector<int64_t>& lengths, Content& content) const;
  absl::Status read_content(const Stream& stream, const PkvReader& file);

  std::shared_ptr<const Device> device_;
  std::shared_ptr<const Codec> codec_;
  IndexSizes sizes_;
  Content content_;
  std::unique_ptr<SequenceState[]> state_;
  std::atomic<int32_t> half_sequences_{0};
  Buffer constants_;  // int32 0 .. sequences-1, then int64 0 .. chunk_tokens
  Buffer workspace_;  // of append: first_bad, backups of the sums, scratch of encode
  HostStage stage_;   // of append, where tokens come from the host
  // Marks the end of the last append, so that one on another stream may use the workspace.
  std::optional<Event> appended_;
  bool has_appended_ = false;
};

}  // namespace pkv
