// The resident layout of key records: the canonical planes of a row, or of one KV head of a page,
// one after another, each padded to 64 bytes. docs/format.md; docs/algorithm.md, section 3.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "core/format/half.h"
#include "core/format/pages.h"
#include "core/format/records.h"
#include "pariskv/pariskv_backend.h"

namespace pkv::cpu_ref {

// A multiple of 256.
int64_t row_bytes(const pkv_geometry& geometry, int64_t capacity);

// The records of one KV head of one sequence. A plane that the geometry lacks is NULL; the planes
// of the sketch may be asked for only at a position that has one.
class RecordRow {
 public:
  RecordRow() = default;
  RecordRow(const pkv_geometry& geometry, const pkv_store& store, int64_t sequence, int32_t head);

  uint8_t* signs(int64_t position) const { return entry<uint8_t>(0, position); }
  uint16_t* vote_factor(int64_t position) const { return entry<uint16_t>(1, position); }
  uint8_t* codes(int64_t position) const { return entry<uint8_t>(2, position); }
  uint16_t* factors(int64_t position) const { return entry<uint16_t>(3, position); }
  uint8_t* value_signs(int64_t position) const { return entry<uint8_t>(4, position); }
  uint8_t* value_codes(int64_t position) const { return entry<uint8_t>(5, position); }
  uint16_t* value_factor(int64_t position) const { return entry<uint16_t>(6, position); }
  uint16_t* value_norm(int64_t position) const { return entry<uint16_t>(7, position); }

  // The entry of `position`, which has one, in any plane.
  std::byte* plane_entry(int plane, int64_t position) const {
    const int64_t local = row_.local(position);
    const bool is_sketch = plane >= format::kFirstSketchPlane && plane <= format::kLastSketchPlane;
    const int64_t i = is_sketch ? local / sketch_stride_ : local;
    return row_.piece(position) + planes_[plane].offset + i * planes_[plane].entry_bytes;
  }
  int64_t entry_bytes(int plane) const { return planes_[plane].entry_bytes; }
  // The first position behind those whose entries lie one after another from that of `position` on.
  int64_t piece_end(int64_t position) const { return row_.piece_end(position); }

 private:
  struct Plane {
    int64_t offset;       // from the begin of a row
    int64_t entry_bytes;  // 0: the geometry lacks the plane
  };
  template <class T>
  T* entry(int plane, int64_t position) const {
    if (planes_[plane].entry_bytes == 0) return nullptr;
    return reinterpret_cast<T*>(plane_entry(plane, position));
  }

  format::StoreRow row_ = {};
  int64_t sketch_stride_ = 1;
  Plane planes_[format::kPlanes] = {};
};

pkv_status store_row_bytes(pkv_backend_device* device, const pkv_geometry* geometry,
                           int64_t capacity, int64_t* out);
pkv_status store_import(pkv_backend_device* device, pkv_backend_stream* stream,
                        const pkv_geometry* geometry, const pkv_store* store, int64_t row,
                        int64_t begin, int64_t count, const pkv_records* source);
pkv_status store_export(pkv_backend_device* device, pkv_backend_stream* stream,
                        const pkv_geometry* geometry, const pkv_store* store, int64_t row,
                        int64_t begin, int64_t count, const pkv_records* target);

// Bit j of a bit plane: byte j / 8, bit j % 8.
inline int32_t read_bit(const uint8_t* plane, int32_t j) { return (plane[j / 8] >> (j % 8)) & 1; }
inline void set_bit(uint8_t* plane, int32_t j) {
  plane[j / 8] = static_cast<uint8_t>(plane[j / 8] | (1 << (j % 8)));
}

// What the sign and code planes of one token say: out[j] = +-levels[code_j], `dim` of them.
template <class Level>
void decode(const uint8_t* signs, const uint8_t* codes, int32_t planes, const Level* levels,
            int32_t dim, Level* out) {
  for (int32_t j = 0; j < dim; ++j) {
    int32_t code = 0;
    for (int32_t p = 0; p < planes; ++p) {
      code |= read_bit(codes + p * (dim / 8), j) << p;
    }
    out[j] = read_bit(signs, j) != 0 ? levels[code] : -levels[code];
  }
}

// Whether a position carries a value sketch (3.5).
inline bool has_sketch(const pkv_geometry& geometry, int64_t position) {
  return geometry.sketch_bits != 0 && position % geometry.sketch_stride == 0;
}

// Whether a key is bad: its factors are NaN then (3.6).
inline bool is_bad(const RecordRow& row, int64_t position) {
  return std::isnan(format::bf16_to_float(*row.factors(position)));
}

}  // namespace pkv::cpu_ref
