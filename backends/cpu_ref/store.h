// The resident layout of key records: the canonical planes of a row one after another, each padded
// to 64 bytes. docs/format.md; docs/algorithm.md, section 3.
#pragma once

#include <cmath>
#include <cstdint>

#include "core/format/half.h"
#include "core/format/records.h"
#include "pariskv/pariskv_backend.h"

namespace pkv::cpu_ref {

// A multiple of 256.
int64_t row_bytes(const pkv_geometry& geometry, int64_t capacity);

// The planes of one row; token t of a plane lies t * (bytes per token) behind its start, the sketch
// of position t at entry t / sketch_stride. A plane that the geometry lacks is NULL.
pkv_records row_records(const pkv_geometry& geometry, const pkv_store& store, int64_t row);

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
inline bool is_bad(const pkv_geometry& geometry, const pkv_records& row, int64_t position) {
  const uint16_t first = row.factors[position * format::factors_per_key(geometry)];
  return std::isnan(format::bf16_to_float(first));
}

}  // namespace pkv::cpu_ref
