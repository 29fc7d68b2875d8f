#include "tests/conformance/zone.h"

#include <algorithm>
#include <map>
#include <utility>

#include "tests/conformance/pages.h"

namespace pkv::conformance {
namespace {

constexpr int64_t kMostBytes = int64_t{1} << 31;  // of a store that is filled and looked through

// The planes of the value sketch.
bool is_sketch(int plane) { return plane >= 4 && plane <= 6; }

// Entries that a plane of `count` tokens has room for, wherever they begin.
int64_t plane_room(const pkv_geometry& geometry, int plane, int64_t count) {
  return plane_entries(geometry, plane, 0, count);
}

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

// Which page each entry of a table is, [sequences, stride]; -1: none.
struct PageUse {
  std::vector<int64_t> table;
  int64_t stride = 0;
  int64_t count = 0;
};

// The bytes of all heads' records in a page.
std::vector<uint8_t> page_content(const Codec& codec, const Zone& zone, size_t sequence,
                                  int64_t begin, int64_t end) {
  std::vector<uint8_t> bytes;
  const auto heads = static_cast<size_t>(codec.heads());
  for (size_t head = 0; head < heads; ++head) {
    const Records part =
        slice_records(codec.geometry, zone.rows[sequence * heads + head], begin, end);
    for (const auto& plane : part.planes) bytes.insert(bytes.end(), plane.begin(), plane.end());
  }
  return bytes;
}

PageUse page_use(const Codec& codec, const Zone& zone, bool may_change) {
  PageUse use;
  use.stride = zone.capacity / zone.page + 2;
  const auto heads = static_cast<size_t>(codec.heads());
  std::map<std::pair<int64_t, std::vector<uint8_t>>, int64_t> shared;
  for (size_t sequence = 0; sequence < zone.rows.size() / heads; ++sequence) {
    const int64_t tokens = zone.rows[sequence * heads].tokens;
    for (int64_t p = 0; p < use.stride; ++p) {
      const int64_t begin = p * zone.page;
      const int64_t end = std::min(begin + zone.page, tokens);
      if (begin >= (may_change ? zone.capacity : tokens)) {
        use.table.push_back(-1);
      } else if (may_change) {
        use.table.push_back(use.count++);
      } else {
        const auto [at, is_new] = shared.emplace(
            std::pair(p, page_content(codec, zone, sequence, begin, end)), use.count);
        if (is_new) ++use.count;
        use.table.push_back(at->second);
      }
    }
  }
  return use;
}

}  // namespace

PlaneSizes plane_sizes(const pkv_geometry& geometry) {
  pkv_record_sizes sizes = {};
  sizes.struct_size = sizeof sizes;
  require("pkv_record_sizes_get", pkv_record_sizes_get(&geometry, &sizes));
  return {sizes.signs,       sizes.vote_factors, sizes.codes,         sizes.factors,
          sizes.value_signs, sizes.value_codes,  sizes.value_factors, sizes.value_norms};
}

int64_t plane_entries(const pkv_geometry& geometry, int plane, int64_t begin, int64_t end) {
  if (!is_sketch(plane)) return end - begin;
  if (geometry.sketch_bits == 0) return 0;
  int64_t entries = 0;
  for (int64_t position = begin; position < end; ++position) {
    entries += position % geometry.sketch_stride == 0 ? 1 : 0;
  }
  return entries;
}

Records blank_records(const pkv_geometry& geometry, int64_t begin, int64_t end, uint8_t fill) {
  const PlaneSizes sizes = plane_sizes(geometry);
  Records records;
  records.tokens = end - begin;
  for (int p = 0; p < kPlanes; ++p) {
    records.entries[p] = plane_entries(geometry, p, begin, end);
    records.planes[p].assign(static_cast<size_t>(records.entries[p] * sizes[p]), fill);
  }
  return records;
}

Records slice_records(const pkv_geometry& geometry, const Records& row, int64_t begin,
                      int64_t end) {
  const PlaneSizes sizes = plane_sizes(geometry);
  Records records = blank_records(geometry, begin, end, 0);
  for (int p = 0; p < kPlanes; ++p) {
    const int64_t skipped = plane_entries(geometry, p, 0, begin) * sizes[p];
    std::copy_n(row.planes[p].begin() + skipped, records.planes[p].size(),
                records.planes[p].begin());
  }
  return records;
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
  store.capacity = zone.page > 0 ? zone.page : zone.capacity;
  {
    Session nothing(place, session.fill());
    nothing.finish("pkv_store_row_bytes", pkv_store_row_bytes(place.device(), &codec.geometry,
                                                              store.capacity, &store.row_bytes));
  }
  PageUse use;
  int64_t bytes = static_cast<int64_t>(zone.rows.size()) * store.row_bytes;
  if (zone.page > 0) {
    use = page_use(codec, zone, may_change);
    bytes = (2 * use.count + 1) * codec.heads() * store.row_bytes;
  }
  uint8_t* base = nullptr;
  if (bytes > kMostBytes) {
    base = session.sparse_records(bytes);
  } else if (bytes > 0) {
    base = session.records(std::vector<uint8_t>(static_cast<size_t>(bytes), session.fill()),
                           may_change);
  }
  if (zone.page > 0) {
    const std::vector<int64_t> places = page_places(use.count);
    std::vector<void*> table;
    for (const int64_t page : use.table) {
      table.push_back(page < 0 ? nullptr
                               : base + places[static_cast<size_t>(page)] * codec.heads() *
                                            store.row_bytes);
    }
    store.pages = session.in("store pages", table);
    store.pages_stride = use.stride;
  } else {
    store.base = base;
  }
  for (size_t row = 0; row < zone.rows.size(); ++row) {
    import_records(place, session.fill(), codec, store, static_cast<int64_t>(row), 0,
                   zone.rows[row]);
  }
  session.settle(base);
  return store;
}

void import_records(const Place& place, uint8_t fill, const Codec& codec, const pkv_store& store,
                    int64_t row, int64_t begin, const Records& records) {
  if (records.tokens == 0) return;
  const PlaneSizes sizes = plane_sizes(codec.geometry);
  Session session(place, fill);
  std::array<void*, kPlanes> planes = {};
  for (int p = 0; p < kPlanes; ++p) {
    std::vector<uint8_t> plane = records.planes[p];
    const int64_t room = plane_room(codec.geometry, p, records.tokens);
    plane.resize(static_cast<size_t>(room * sizes[p]), fill);
    planes[p] = const_cast<uint8_t*>(session.in(kPlaneNames[p], plane));
  }
  const pkv_records source = records_of(planes, records.tokens);
  session.finish("pkv_store_import_sync",
                 pkv_store_import_sync(place.device(), place.stream(), &codec.geometry, &store, row,
                                       begin, records.tokens, &source));
}

Records export_records(const Place& place, uint8_t fill, const Codec& codec, const pkv_store& store,
                       int64_t row, int64_t begin, int64_t count) {
  Records records = blank_records(codec.geometry, begin, begin + count, fill);
  const PlaneSizes sizes = plane_sizes(codec.geometry);
  const auto room = [&](int p) { return plane_room(codec.geometry, p, count) * sizes[p]; };
  Session session(place, fill);
  std::array<void*, kPlanes> planes = {};
  for (int p = 0; p < kPlanes; ++p) planes[p] = session.out<uint8_t>(kPlaneNames[p], room(p));
  const pkv_records target = records_of(planes, count);
  session.finish("pkv_store_export_sync",
                 pkv_store_export_sync(place.device(), place.stream(), &codec.geometry, &store, row,
                                       begin, count, &target));
  for (int p = 0; p < kPlanes; ++p) {
    const auto used = static_cast<int64_t>(records.planes[p].size());
    records.planes[p] =
        session.read_rows(kPlaneNames[p], static_cast<uint8_t*>(planes[p]), room(p), {used})[0];
  }
  return records;
}

}  // namespace pkv::conformance
