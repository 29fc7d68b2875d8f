// Canonical planes, one after another. docs/format.md.
#include "backends/cpu_ref/store.h"

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

// Copies positions [begin, begin + count) of every plane. The side that is a row of the store has
// entry 0 at position 0; the other side has it at the first entry of the range.
enum class StoreSide { kTarget, kSource };
void copy_positions(const pkv_geometry& geometry, const pkv_records& target,
                    const pkv_records& source, StoreSide side, int64_t begin, int64_t count) {
  const PlaneBytes bytes = plane_bytes(geometry);
  const Planes into = planes_of(target);
  const Planes out_of = planes_of(source);
  for (int p = 0; p < kPlanes; ++p) {
    const int64_t first = format::plane_entries(geometry, p, begin);
    const int64_t entry_count = format::plane_entries(geometry, p, begin + count) - first;
    if (bytes.of[p] == 0 || entry_count == 0) continue;
    const int64_t to = side == StoreSide::kTarget ? first : 0;
    const int64_t from = side == StoreSide::kSource ? first : 0;
    std::memcpy(static_cast<uint8_t*>(into.of[p]) + to * bytes.of[p],
                static_cast<const uint8_t*>(out_of.of[p]) + from * bytes.of[p],
                static_cast<size_t>(entry_count * bytes.of[p]));
  }
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

pkv_records row_records(const pkv_geometry& geometry, const pkv_store& store, int64_t row) {
  const PlaneBytes bytes = plane_bytes(geometry);
  auto* next = static_cast<uint8_t*>(store.base) + row * store.row_bytes;
  uint8_t* start[kPlanes] = {};
  for (int p = 0; p < kPlanes; ++p) {
    if (bytes.of[p] == 0) continue;
    start[p] = next;
    next += padded(format::plane_entries(geometry, p, store.capacity) * bytes.of[p], 64);
  }
  pkv_records records = {};
  records.struct_size = sizeof(pkv_records);
  records.row_tokens = store.capacity;
  records.signs = start[0];
  records.vote_factors = reinterpret_cast<uint16_t*>(start[1]);
  records.codes = start[2];
  records.factors = reinterpret_cast<uint16_t*>(start[3]);
  records.value_signs = start[4];
  records.value_codes = start[5];
  records.value_factors = reinterpret_cast<uint16_t*>(start[6]);
  records.value_norms = reinterpret_cast<uint16_t*>(start[7]);
  return records;
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
  copy_positions(*geometry, row_records(*geometry, *store, row), *source, StoreSide::kTarget, begin,
                 count);
  return PKV_OK;
}

pkv_status store_export(pkv_backend_device* /*device*/, pkv_backend_stream* /*stream*/,
                        const pkv_geometry* geometry, const pkv_store* store, int64_t row,
                        int64_t begin, int64_t count, const pkv_records* target) {
  copy_positions(*geometry, *target, row_records(*geometry, *store, row), StoreSide::kSource, begin,
                 count);
  return PKV_OK;
}

}  // namespace pkv::cpu_ref
