// Canonical planes, one after another. docs/format.md.
#include "backends/cpu_ref/store.h"

#include <algorithm>
#include <cstring>

#include "backends/cpu_ref/check.h"
#include "backends/cpu_ref/device.h"

namespace pkv::cpu_ref {
namespace {

using format::kPlanes;

// Bytes of one entry of each plane, in the order of pkv_records.
struct PlaneBytes {
  int64_t of[kPlanes];
};

PlaneBytes plane_bytes(const pkv_geometry& geometry) {
  const format::RecordSizes sizes = format::record_sizes(geometry);
  return {{sizes.signs, sizes.vote_factors, sizes.codes, sizes.factors, sizes.value_signs,
           sizes.value_codes, sizes.value_factors, sizes.value_norms}};
}

struct Planes {
  void* of[kPlanes];
};

Planes planes_of(const pkv_records& records) {
  return {{records.signs, records.vote_factors, records.codes, records.factors, records.value_signs,
           records.value_codes, records.value_factors, records.value_norms}};
}

int64_t padded(int64_t bytes, int64_t unit) { return (bytes + unit - 1) / unit * unit; }

// Copies positions [begin, begin + count) of every plane, piece by piece. On the other side entry 0
// of a plane is the first that the range has.
enum class Direction { kIntoRow, kOutOfRow };
void copy_positions(const pkv_geometry& geometry, const RecordRow& row, const pkv_records& records,
                    Direction direction, int64_t begin, int64_t count) {
  const Planes planes = planes_of(records);
  for (int p = 0; p < kPlanes; ++p) {
    const int64_t bytes = row.entry_bytes(p);
    if (bytes == 0) continue;
    auto* other = static_cast<std::byte*>(planes.of[p]);
    const bool is_sketch = p >= format::kFirstSketchPlane && p <= format::kLastSketchPlane;
    const int64_t stride = is_sketch ? geometry.sketch_stride : 1;
    int64_t position = (begin + stride - 1) / stride * stride;
    while (position < begin + count) {
      const int64_t end = std::min(begin + count, row.piece_end(position));
      const int64_t entries = (end - position + stride - 1) / stride;
      std::byte* entry = row.plane_entry(p, position);
      const auto size = static_cast<size_t>(entries * bytes);
      if (direction == Direction::kIntoRow) {
        std::memcpy(entry, other, size);
      } else {
        std::memcpy(other, entry, size);
      }
      other += size;
      position += entries * stride;
    }
  }
}

RecordRow row_of(const pkv_geometry& geometry, const pkv_store& store, int64_t row) {
  return {geometry, store, row / geometry.kv_heads, static_cast<int32_t>(row % geometry.kv_heads)};
}

}  // namespace

int64_t row_bytes(const pkv_geometry& geometry, int64_t capacity) {
  const PlaneBytes bytes = plane_bytes(geometry);
  int64_t total = 0;
  for (int p = 0; p < kPlanes; ++p) {
    total += padded(format::plane_entries(geometry, p, capacity) * bytes.of[p], 64);
  }
  return padded(total, 256);
}

RecordRow::RecordRow(const pkv_geometry& geometry, const pkv_store& store, int64_t sequence,
                     int32_t head)
    : row_(format::store_row(store, geometry.kv_heads, sequence, head)),
      sketch_stride_(std::max(geometry.sketch_stride, 1)) {
  const PlaneBytes bytes = plane_bytes(geometry);
  int64_t offset = 0;
  for (int p = 0; p < kPlanes; ++p) {
    planes_[p] = {offset, bytes.of[p]};
    offset += padded(format::plane_entries(geometry, p, store.capacity) * bytes.of[p], 64);
  }
}

pkv_status store_row_bytes(pkv_backend_device* device, const pkv_geometry* geometry,
                           int64_t capacity, int64_t* out) {
  pkv_status status = check_geometry(device->host, *geometry);
  if (status != PKV_OK) return status;
  status = check_range(device->host, "capacity", capacity, 0, format::kMaxTokens);
  if (status != PKV_OK) return status;
  *out = row_bytes(*geometry, capacity);
  return PKV_OK;
}

pkv_status store_import(pkv_backend_device* /*device*/, pkv_backend_stream* /*stream*/,
                        const pkv_geometry* geometry, const pkv_store* store, int64_t row,
                        int64_t begin, int64_t count, const pkv_records* source) {
  copy_positions(*geometry, row_of(*geometry, *store, row), *source, Direction::kIntoRow, begin,
                 count);
  return PKV_OK;
}

pkv_status store_export(pkv_backend_device* /*device*/, pkv_backend_stream* /*stream*/,
                        const pkv_geometry* geometry, const pkv_store* store, int64_t row,
                        int64_t begin, int64_t count, const pkv_records* target) {
  copy_positions(*geometry, row_of(*geometry, *store, row), *target, Direction::kOutOfRow, begin,
                 count);
  return PKV_OK;
}

}  // namespace pkv::cpu_ref
