// Canonical records (docs/format.md, section 1): their planes as an array, and records staged on a
// device on their way to the host or back.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/format/records.h"
#include "core/runtime/buffer.h"
#include "core/runtime/device.h"
#include "core/runtime/stream.h"
#include "pariskv/pariskv_types.h"

namespace pkv {

using format::kPlanes;
inline constexpr std::string_view kPlaneNames[kPlanes] = {
    "signs",       "vote_factors", "codes",         "factors",
    "value_signs", "value_codes",  "value_factors", "value_norms"};

// Bytes of one entry of each plane, in the order of pkv_records; 0 for one that the geometry lacks.
std::array<int64_t, kPlanes> plane_bytes(const pkv_geometry& geometry);
std::array<uint8_t*, kPlanes> planes_of(const pkv_records& records);
// Planes that the geometry lacks become NULL.
pkv_records records_of(const std::array<uint8_t*, kPlanes>& planes, int64_t row_tokens);
// Bytes of each plane for positions [begin, begin + count).
std::array<int64_t, kPlanes> range_bytes(const pkv_geometry& geometry, int64_t begin,
                                         int64_t count);
// Entries of one plane for all rows of sequences of these lengths, each of kv_heads rows.
int64_t entry_count(const pkv_geometry& geometry, int plane, std::span<const int64_t> lengths);
// Planes whose first entry is that of position `first`: the same from position `begin` on.
pkv_records planes_at(const pkv_geometry& geometry, const pkv_records& records, int64_t first,
                      int64_t begin);
// INVALID_ARGUMENT: a plane of the geometry is NULL, though records are wanted.
absl::Status check_planes(const pkv_geometry& geometry, const pkv_records& records, int64_t count);

// Room for `tokens` canonical records of one row in memory of the device.
class StagedRecords {
 public:
  static absl::StatusOr<StagedRecords> create(std::shared_ptr<const Device> device,
                                              const pkv_geometry& geometry, int64_t tokens);

  // Between the store and the room: positions [begin, begin + count) of a row, count <= tokens.
  absl::Status export_row(const Stream& stream, const pkv_store& store, int64_t row, int64_t begin,
                          int64_t count) const;
  absl::Status import_row(const Stream& stream, const pkv_store& store, int64_t row, int64_t begin,
                          int64_t count) const;
  // Between the room and host planes; enqueued.
  absl::Status copy_out(const Stream& stream, const pkv_records& target, int64_t begin,
                        int64_t count) const;
  absl::Status copy_in(const Stream& stream, const pkv_records& source, int64_t begin,
                       int64_t count) const;

 private:
  StagedRecords(std::shared_ptr<const Device> device, const pkv_geometry& geometry)
      : device_(std::move(device)), geometry_(geometry) {}

  std::shared_ptr<const Device> device_;
  pkv_geometry geometry_;
  Buffer buffer_;
  pkv_records records_{};
};

}  // namespace pkv
