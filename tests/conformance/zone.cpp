#include "tests/conformance/zone.h"

namespace pkv::conformance {
namespace {

pkv_records records_of(const std::array<void*, kPlanes>& planes, int64_t tokens) {
  pkv_records records = {};
  records.struct_size = sizeof records;
  records.row_tokens = tokens;
  records.signs = static_cast<uint8_t*>(planes[0]);
  records.vote_factors = static_cast<uint16_t*>(planes[1]);
  records.codes = static_cast<uint8_t*>(planes[2]);
  records.factors = static_cast<uint16_t*>(planes[3]);
  records.value_signs = static_cast<uint8_t*>(planes[4]);
  records.value_codes = static_cast<uint8_t*>(planes[5]);
  records.value_factors = static_cast<uint16_t*>(planes[6]);
  records.value_norms = static_cast<uint16_t*>(planes[7]);
  return records;
}

}  // namespace

PlaneSizes plane_sizes(const pkv_geometry& geometry) {
  pkv_record_sizes sizes = {};
  sizes.struct_size = sizeof sizes;
  require("pkv_record_sizes_get", pkv_record_sizes_get(&geometry, &sizes));
  return {sizes.signs,       sizes.vote_factors, sizes.codes,         sizes.factors,
          sizes.value_signs, sizes.value_codes,  sizes.value_factors, sizes.value_norms};
}

uint16_t Records::number(int plane, int64_t i) const {
  uint16_t bits = 0;
  std::memcpy(&bits, planes[plane].data() + 2 * i, sizeof bits);
  return bits;
}

Zone empty_zone(const Codec& codec, int32_t sequences, int64_t capacity, bool has_values) {
  Zone zone;
  zone.capacity = capacity;
  const size_t rows = static_cast<size_t>(sequences) * codec.heads();
  zone.rows.resize(rows);
  zone.good_counts.assign(rows, 0);
  if (has_values) zone.value_sums.assign(rows * codec.dv(), 0.0);
  if (codec.geometry.vote == PKV_VOTE_TIER) zone.occupancy.assign(rows * codec.d() / 8 * 256, 0);
  return zone;
}

pkv_store put_store(Session& session, const Codec& codec, const Zone& zone, bool may_change) {
  const Place& place = session.place();
  pkv_store store = {};
  store.capacity = zone.capacity;
  {
    Session nothing(place, session.fill());
    nothing.finish("pkv_store_row_bytes", pkv_store_row_bytes(place.device(), &codec.geometry,
                                                              zone.capacity, &store.row_bytes));
  }
  const std::vector<uint8_t> memory(zone.rows.size() * static_cast<size_t>(store.row_bytes),
                                    session.fill());
  store.base = may_change ? session.in_out("store", memory)
                          : const_cast<uint8_t*>(session.in("store", memory));
  for (size_t row = 0; row < zone.rows.size(); ++row) {
    import_records(place, session.fill(), codec, store, static_cast<int64_t>(row), 0,
                   zone.rows[row]);
  }
  session.settle(store.base);
  return store;
}

void import_records(const Place& place, uint8_t fill, const Codec& codec, const pkv_store& store,
                    int64_t row, int64_t begin, const Records& records) {
  if (records.tokens == 0) return;
  Session session(place, fill);
  std::array<void*, kPlanes> planes = {};
  for (int p = 0; p < kPlanes; ++p) {
    planes[p] = const_cast<uint8_t*>(session.in(kPlaneNames[p], records.planes[p]));
  }
  const pkv_records source = records_of(planes, records.tokens);
  session.finish("pkv_store_import_sync",
                 pkv_store_import_sync(place.device(), place.stream(), &codec.geometry, &store, row,
                                       begin, records.tokens, &source));
}

Records export_records(const Place& place, uint8_t fill, const Codec& codec, const pkv_store& store,
                       int64_t row, int64_t begin, int64_t count) {
  Records records;
  records.tokens = count;
  const PlaneSizes sizes = plane_sizes(codec.geometry);
  Session session(place, fill);
  std::array<void*, kPlanes> planes = {};
  for (int p = 0; p < kPlanes; ++p) {
    planes[p] = session.out<uint8_t>(kPlaneNames[p], count * sizes[p]);
  }
  const pkv_records target = records_of(planes, count);
  session.finish("pkv_store_export_sync",
                 pkv_store_export_sync(place.device(), place.stream(), &codec.geometry, &store, row,
                                       begin, count, &target));
  for (int p = 0; p < kPlanes; ++p) {
    records.planes[p] = session.read(static_cast<uint8_t*>(planes[p]), count * sizes[p]);
  }
  return records;
}

}  // namespace pkv::conformance
