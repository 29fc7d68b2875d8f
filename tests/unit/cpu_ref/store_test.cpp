// The resident layout of cpu_ref: canonical planes, padded. docs/format.md.
#include "backends/cpu_ref/store.h"

#include <doctest/doctest.h>

#include <vector>

#include "tests/unit/cpu_ref/oracle.h"

namespace pkv {
namespace {

using test::geometry_of;
using test::Oracle;
using test::Tensor;

pkv_geometry full_geometry(int32_t stride = 1) {
  pkv_geometry geometry = test::with_sketch(geometry_of(24, 40, PKV_CODEC_POLAR4), 4, stride);
  geometry.value_norm = 1;
  return geometry;
}

TEST_CASE("store: rows are a multiple of 256 bytes that holds every plane") {
  for (const int64_t capacity : {0, 1, 7, 64, 1000}) {
    for (const auto& geometry :
         {full_geometry(), full_geometry(16), full_geometry(7), geometry_of(8), geometry_of(576)}) {
      const format::RecordSizes sizes = format::record_sizes(geometry);
      int64_t sketches = 0;
      for (int64_t t = 0; geometry.sketch_bits != 0 && t < capacity; t += geometry.sketch_stride) {
        ++sketches;
      }
      const int64_t needed = capacity * sizes.total + sketches * sizes.sketch;
      const int64_t bytes = cpu_ref::row_bytes(geometry, capacity);
      CHECK(bytes % 256 == 0);
      CHECK(bytes >= needed);
      CHECK(bytes <= needed + 8 * 63 + 255);
    }
  }
  // The largest row: no 32-bit product on the way.
  CHECK(cpu_ref::row_bytes(geometry_of(576), format::kMaxTokens) > int64_t{1} << 38);
}

TEST_CASE("store: planes start at multiples of 64, apart, and missing ones are NULL") {
  const pkv_geometry geometry = full_geometry();
  Oracle oracle(geometry, 7, 2);
  const cpu_ref::RecordRow row(geometry, oracle.store, 1, 0);
  const auto* base = static_cast<const uint8_t*>(oracle.store.base) + oracle.store.row_bytes;
  CHECK(row.signs(0) == base);
  CHECK(reinterpret_cast<const uint8_t*>(row.vote_factor(0)) == base + 64);    // 7 * 3 bytes
  CHECK(row.codes(0) == base + 128);                                           // 7 * 2
  CHECK(reinterpret_cast<const uint8_t*>(row.factors(0)) == base + 192);       // 7 * 9
  CHECK(row.value_signs(0) == base + 256);                                     // 7 * 6
  CHECK(row.value_codes(0) == base + 320);                                     // 7 * 5
  CHECK(reinterpret_cast<const uint8_t*>(row.value_factor(0)) == base + 448);  // 7 * 15
  CHECK(reinterpret_cast<const uint8_t*>(row.value_norm(0)) == base + 512);    // 7 * 2
  CHECK(oracle.store.row_bytes == 768);
  const cpu_ref::RecordRow plain(geometry_of(8, 0, PKV_CODEC_SCALAR4, PKV_VOTE_TIER), oracle.store,
                                 0, 0);
  CHECK(plain.vote_factor(0) == nullptr);
  CHECK(plain.value_signs(0) == nullptr);
  CHECK(plain.value_codes(0) == nullptr);
  CHECK(plain.value_factor(0) == nullptr);
  CHECK(plain.value_norm(0) == nullptr);
}

TEST_CASE("store: with a stride, value planes have an entry per sketch") {
  Oracle oracle(full_geometry(4), 17, 1);
  const cpu_ref::RecordRow row(oracle.geometry, oracle.store, 0, 0);
  const auto* base = static_cast<const uint8_t*>(oracle.store.base);
  CHECK(row.value_signs(0) - base == 64 + 64 + 192 + 128);  // 17 * 3, 2, 9, 6
  CHECK(row.value_codes(0) - row.value_signs(0) == 64);     // 5 * 5
  CHECK(reinterpret_cast<const uint8_t*>(row.value_factor(0)) - row.value_codes(0) == 128);  // 75
  CHECK(row.value_norm(0) - row.value_factor(0) == 64 / 2);  // 5 * 2
  CHECK(row.value_codes(8) - row.value_codes(0) == 2 * 15);
  CHECK(oracle.store.row_bytes == 768);
}

// Canonical planes for `tokens` records, filled with 0x5A.
struct Planes {
  Planes(const pkv_geometry& geometry, int64_t tokens) {
    const format::RecordSizes sizes = format::record_sizes(geometry);
    for (const int32_t size :
         {sizes.signs, sizes.vote_factors, sizes.codes, sizes.factors, sizes.value_signs,
          sizes.value_codes, sizes.value_factors, sizes.value_norms}) {
      bytes.emplace_back(static_cast<size_t>(tokens * size), uint8_t{0x5A});
    }
    records.struct_size = sizeof records;
    records.row_tokens = tokens;
    records.signs = bytes[0].data();
    records.vote_factors = reinterpret_cast<uint16_t*>(bytes[1].data());
    records.codes = bytes[2].data();
    records.factors = reinterpret_cast<uint16_t*>(bytes[3].data());
    records.value_signs = bytes[4].data();
    records.value_codes = bytes[5].data();
    records.value_factors = reinterpret_cast<uint16_t*>(bytes[6].data());
    records.value_norms = reinterpret_cast<uint16_t*>(bytes[7].data());
  }
  std::vector<std::vector<uint8_t>> bytes;
  pkv_records records = {};
};

TEST_CASE("store: any range goes out and in again, wherever it lies between the sketches") {
  constexpr int64_t kTokens = 37;
  for (const int32_t stride : {1, 3, 16, 40}) {
    CAPTURE(stride);
    const pkv_geometry geometry = full_geometry(stride);
    Oracle whole(geometry, kTokens, 1);
    Tensor keys = Tensor::random({1, 1, kTokens, 24}, 1);
    Tensor values = Tensor::random({1, 1, kTokens, 40}, 2);
    whole.encode(keys, values);
    for (const int64_t begin : {0, 1, 2, 3, 15, 16, 17, 31, 36, 37}) {
      for (const int64_t count : {0, 1, 2, 15, 16, 17, 37}) {
        if (begin + count > kTokens) continue;
        CAPTURE(begin);
        CAPTURE(count);
        Planes out(geometry, count + 1);
        whole.expect(whole.table->store_export(whole.device, nullptr, &geometry, &whole.store, 0,
                                               begin, count, &out.records));
        Oracle other(geometry, kTokens + 5, 1);
        other.expect(other.table->store_import(other.device, nullptr, &geometry, &other.store, 0,
                                               begin, count, &out.records));
        size_t sketches = 0;
        for (int64_t t = 0; t < kTokens; ++t) {
          const auto expected = whole.record(0, t);
          const auto record = other.record(0, t);
          const bool is_inside = t >= begin && t < begin + count;
          CHECK((record.signs == expected.signs) == is_inside);
          CHECK((record.value_norm == expected.value_norm) == is_inside);
          if (t % stride != 0) continue;
          CHECK((record.value_codes == expected.value_codes) == is_inside);
          CHECK((record.value_factor == expected.value_factor) == is_inside);
          if (!is_inside) continue;
          // Entry i of a value plane is the i-th sketch of the range.
          CHECK(out.records.value_factors[sketches] == expected.value_factor);
          ++sketches;
        }
        CHECK(out.records.value_factors[sketches] == 0x5A5A);  // nothing behind the last
      }
    }
  }
}

TEST_CASE("store: import is the inverse of export and touches its positions only") {
  const pkv_geometry geometry = full_geometry();
  Oracle from(geometry, 9, 2);
  Oracle to(geometry, 13, 3);
  Tensor keys = Tensor::random({2, 1, 9, 24}, 1);
  Tensor values = Tensor::random({2, 1, 9, 40}, 2);
  from.encode(keys, values);

  const Planes planes(geometry, 4);
  const pkv_records& records = planes.records;
  // Positions 3 .. 6 of row 1 go to positions 5 .. 8 of row 2.
  from.expect(
      from.table->store_export(from.device, nullptr, &geometry, &from.store, 1, 3, 4, &records));
  to.expect(to.table->store_import(to.device, nullptr, &geometry, &to.store, 2, 5, 4, &records));
  for (int64_t t = 0; t < 13; ++t) {
    const auto record = to.record(2, t);
    if (t < 5 || t > 8) {  // as the store was filled
      CHECK(record.signs[0] == 0xA5);
      CHECK(record.value_norm == 0xA5A5);
      CHECK(record.factors[2] == 0xA5A5);
      continue;
    }
    const auto expected = from.record(1, t - 2);
    CHECK(record.signs == expected.signs);
    CHECK(record.codes == expected.codes);
    CHECK(record.factors == expected.factors);
    CHECK(record.vote_factor == expected.vote_factor);
    CHECK(record.value_signs == expected.value_signs);
    CHECK(record.value_codes == expected.value_codes);
    CHECK(record.value_factor == expected.value_factor);
    CHECK(record.value_norm == expected.value_norm);
  }
  for (int64_t t = 0; t < 13; ++t) CHECK(to.record(1, t).signs[0] == 0xA5);
}

}  // namespace
}  // namespace pkv
