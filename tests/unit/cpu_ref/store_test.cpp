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

pkv_geometry full_geometry() {
  pkv_geometry geometry = geometry_of(24, 40, PKV_CODEC_POLAR4);
  geometry.sketch_bits = 4;
  geometry.value_norm = 1;
  return geometry;
}

TEST_CASE("store: rows are a multiple of 256 bytes that holds every plane") {
  for (const int64_t capacity : {0, 1, 7, 64, 1000}) {
    for (const auto& geometry : {full_geometry(), geometry_of(8), geometry_of(576)}) {
      const int64_t bytes = cpu_ref::row_bytes(geometry, capacity);
      CHECK(bytes % 256 == 0);
      CHECK(bytes >= capacity * format::record_sizes(geometry).total);
      CHECK(bytes <= capacity * format::record_sizes(geometry).total + 8 * 63 + 255);
    }
  }
  // The largest row: no 32-bit product on the way.
  CHECK(cpu_ref::row_bytes(geometry_of(576), format::kMaxTokens) > int64_t{1} << 38);
}

TEST_CASE("store: planes start at multiples of 64, apart, and missing ones are NULL") {
  const pkv_geometry geometry = full_geometry();
  Oracle oracle(geometry, 7, 2);
  const auto row = cpu_ref::row_records(geometry, oracle.store, 1);
  const auto* base = static_cast<const uint8_t*>(oracle.store.base) + oracle.store.row_bytes;
  CHECK(row.signs == base);
  CHECK(reinterpret_cast<const uint8_t*>(row.vote_factors) == base + 64);    // 7 * 3 bytes
  CHECK(row.codes == base + 128);                                            // 7 * 2
  CHECK(reinterpret_cast<const uint8_t*>(row.factors) == base + 192);        // 7 * 9
  CHECK(row.value_signs == base + 256);                                      // 7 * 6
  CHECK(row.value_codes == base + 320);                                      // 7 * 5
  CHECK(reinterpret_cast<const uint8_t*>(row.value_factors) == base + 448);  // 7 * 15
  CHECK(reinterpret_cast<const uint8_t*>(row.value_norms) == base + 512);    // 7 * 2
  CHECK(oracle.store.row_bytes == 768);
  const auto plain =
      cpu_ref::row_records(geometry_of(8, 0, PKV_CODEC_SCALAR4, PKV_VOTE_TIER), oracle.store, 0);
  CHECK(plain.vote_factors == nullptr);
  CHECK(plain.value_signs == nullptr);
  CHECK(plain.value_codes == nullptr);
  CHECK(plain.value_factors == nullptr);
  CHECK(plain.value_norms == nullptr);
}

TEST_CASE("store: import is the inverse of export and touches its positions only") {
  const pkv_geometry geometry = full_geometry();
  Oracle from(geometry, 9, 2);
  Oracle to(geometry, 13, 3);
  Tensor keys = Tensor::random({2, 1, 9, 24}, 1);
  Tensor values = Tensor::random({2, 1, 9, 40}, 2);
  from.encode(keys, values);

  const format::RecordSizes sizes = format::record_sizes(geometry);
  std::vector<std::vector<uint8_t>> planes;
  for (const int32_t size :
       {sizes.signs, sizes.vote_factors, sizes.codes, sizes.factors, sizes.value_signs,
        sizes.value_codes, sizes.value_factors, sizes.value_norms}) {
    planes.emplace_back(static_cast<size_t>(4 * size));
  }
  pkv_records records = {};
  records.struct_size = sizeof records;
  records.row_tokens = 4;
  records.signs = planes[0].data();
  records.vote_factors = reinterpret_cast<uint16_t*>(planes[1].data());
  records.codes = planes[2].data();
  records.factors = reinterpret_cast<uint16_t*>(planes[3].data());
  records.value_signs = planes[4].data();
  records.value_codes = planes[5].data();
  records.value_factors = reinterpret_cast<uint16_t*>(planes[6].data());
  records.value_norms = reinterpret_cast<uint16_t*>(planes[7].data());
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
