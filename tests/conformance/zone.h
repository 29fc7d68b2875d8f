// Key records of all rows in canonical form, with what is kept beside them: the currency between
// stages. A zone goes into a place's store by import and comes out by export, so the layout there
// is nobody's business. docs/format.md, section 1.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "tests/conformance/codec.h"

namespace pkv::conformance {

inline constexpr int kPlanes = 8;
inline constexpr const char* kPlaneNames[kPlanes] = {"signs",         "vote_factors", "codes",
                                                     "factors",       "value_signs",  "value_codes",
                                                     "value_factors", "value_norms"};

// Bytes per entry of each plane, 0 for one that the geometry lacks.
using PlaneSizes = std::array<int32_t, kPlanes>;
PlaneSizes plane_sizes(const pkv_geometry& geometry);

// Positions [begin, end) that have an entry in a plane: all of them, or in the planes of the value
// sketch those that are multiples of its stride.
int64_t plane_entries(const pkv_geometry& geometry, int plane, int64_t begin, int64_t end);

// One row: [entries, bytes per entry] of each plane.
struct Records {
  int64_t tokens = 0;
  std::array<int64_t, kPlanes> entries = {};
  std::array<std::vector<uint8_t>, kPlanes> planes;

  // Entry `i` of a plane of bf16 numbers.
  uint16_t number(int plane, int64_t i) const;
};
// Those of positions [begin, end), all bytes `fill`.
Records blank_records(const pkv_geometry& geometry, int64_t begin, int64_t end, uint8_t fill);
// Those of positions [begin, end) of a row.
Records slice_records(const pkv_geometry& geometry, const Records& row, int64_t begin, int64_t end);

// Row r = sequence * kv_heads + head.
struct Zone {
  int64_t capacity = 0;
  int64_t page = 0;  // tokens of a page of the store; 0: in one piece per row
  std::vector<Records> rows;
  std::vector<int32_t> occupancy;    // [rows, d/8, 256]; tier only, else empty
  std::vector<double> value_sums;    // [rows, dv]; empty without values
  std::vector<int64_t> good_counts;  // [rows]
};

// Nothing indexed yet. `has_values`: values will be given.
Zone empty_zone(const Codec& codec, int32_t sequences, int64_t capacity, bool has_values);

// A store with the zone's records; positions behind them hold the session's fill. `may_change`: the
// call writes records. In pages, sequences share those in which they are the same, unless records
// may be written: then each has pages for its whole capacity.
pkv_store put_store(Session& session, const Codec& codec, const Zone& zone, bool may_change);

// Writes records [0, records.tokens) to positions begin.. of a row, and reads positions
// [begin, begin + count).
void import_records(const Place& place, uint8_t fill, const Codec& codec, const pkv_store& store,
                    int64_t row, int64_t begin, const Records& records);
Records export_records(const Place& place, uint8_t fill, const Codec& codec, const pkv_store& store,
                       int64_t row, int64_t begin, int64_t count);

}  // namespace pkv::conformance
