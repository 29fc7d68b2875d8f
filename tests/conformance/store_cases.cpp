// What the layout slots must satisfy: records go in and come out as they were, and those beside
// them stay. docs/format.md, section 1: exact.
#include "fmt/core.h"
#include "tests/conformance/bench.h"
#include "tests/conformance/cases.h"
#include "tests/conformance/failure.h"
#include "tests/conformance/world.h"

namespace pkv::conformance {
namespace {

// The records of positions [from, from + count) as they would be at position `to`: there, a sketch
// may lie elsewhere among them, and there may be one more or one less.
Records moved(const pkv_geometry& geometry, const Records& row, int64_t from, int64_t count,
              int64_t to) {
  Records result = slice_records(geometry, row, from, from + count);
  const Records target = blank_records(geometry, to, to + count, 0xA5);
  for (int p = 0; p < kPlanes; ++p) {
    result.entries[p] = target.entries[p];
    result.planes[p].resize(target.planes[p].size(), 0xA5);
  }
  return result;
}

// The records of positions [begin, begin + with.tokens) replaced by those of `with`.
Records replaced(const pkv_geometry& geometry, const Records& row, const Records& with,
                 int64_t begin) {
  const PlaneSizes sizes = plane_sizes(geometry);
  Records result = row;
  for (int p = 0; p < kPlanes; ++p) {
    std::copy(with.planes[p].begin(), with.planes[p].end(),
              result.planes[p].begin() + plane_entries(geometry, p, 0, begin) * sizes[p]);
  }
  return result;
}

// Parts of a row of n keys: by shares, and around the positions that carry sketches.
std::vector<std::pair<int64_t, int64_t>> ranges(const pkv_geometry& geometry, int64_t n) {
  std::vector<std::pair<int64_t, int64_t>> result = {
      {0, n}, {0, n / 2}, {n / 2, n}, {n / 3, n / 2}, {n - n / 5, n}, {n / 2, n / 2}};
  const int64_t p = geometry.sketch_stride;
  if (p <= 1) return result;
  for (const auto& [begin, end] :
       {std::pair(int64_t{1}, p), std::pair(int64_t{1}, p + 1), std::pair(p, p + 1),
        std::pair(p - 1, 2 * p), std::pair(p + 1, 2 * p + 1)}) {
    if (begin < end && end <= n) result.emplace_back(begin, end);
  }
  return result;
}

// Every row whole, then parts of it at several offsets, then a part written over.
void check_store(const Bench& bench, const Setup& setup, const std::string& name) {
  const World world(bench, setup, name);
  const Zone& zone = world.zone();
  const Codec& codec = world.codec();
  const pkv_geometry& geometry = codec.geometry;
  const Place& place = bench.subject();
  for (const uint8_t fill : kFills) {
    Session session(place, fill);
    const pkv_store store = put_store(session, codec, zone, /*may_change=*/true);
    if (store.row_bytes % 256 != 0 || store.row_bytes < 0) {
      throw Failure(fmt::format("row_bytes={} is no multiple of 256", store.row_bytes));
    }
    const int64_t last = static_cast<int64_t>(zone.rows.size()) - 1;
    for (int64_t row = 0; row <= last; ++row) {
      const Records& all = zone.rows[static_cast<size_t>(row)];
      const int64_t n = all.tokens;
      for (const auto& [begin, end] : ranges(geometry, n)) {
        expect_bits(fmt::format("row {}, positions [{}, {})", row, begin, end),
                    slice_records(geometry, all, begin, end),
                    export_records(place, fill, codec, store, row, begin, end - begin));
      }
      // The first records once more, over those from the middle on.
      const Records part = moved(geometry, all, 0, n / 4, n / 2);
      import_records(place, fill, codec, store, row, n / 2, part);
      expect_bits(fmt::format("row {} after an import at {}", row, n / 2),
                  replaced(geometry, all, part, n / 2),
                  export_records(place, fill, codec, store, row, 0, n));
      import_records(place, fill, codec, store, row, 0, all);
    }
    for (int64_t row = 0; row <= last; ++row) {
      expect_bits(fmt::format("row {} after the others", row), zone.rows[static_cast<size_t>(row)],
                  export_records(place, fill, codec, store, row, 0,
                                 zone.rows[static_cast<size_t>(row)].tokens));
    }
    session.finish("pkv_store_export_sync", PKV_OK);
  }
}

void add(Cases& cases, const Setup& setup) {
  const std::string name =
      fmt::format("store/{}_{}/{}", codec_name(setup.codec), vote_name(setup.vote), setup.text());
  cases.push_back({name, Verdict::kExact,
                   [setup, name](const Bench& bench) { check_store(bench, setup, name); }});
}

}  // namespace

void add_store_cases(Cases& cases) {
  for (const int32_t codec : kCodecs) {
    for (const int32_t vote : {PKV_VOTE_TIER, PKV_VOTE_GRADED}) {
      add(cases,
          {.d = 128, .h = 2, .b = 3, .n = 65, .codec = codec, .vote = vote, .keys = "one_nan"});
    }
  }
  for (const int32_t d : kDims) add(cases, {.d = d, .b = 3, .n = 37});
  add(cases, {.d = 64, .h = 2, .b = 3, .n = 65, .room = kLargeRoom});
  add(cases, {.d = 64, .h = 2, .b = 3, .n = 65, .sketch_bits = 4, .room = kLargeRoom});
  for (const int32_t bits : {2, 4}) {
    for (const int32_t dv : {8, 128, 264}) {
      add(cases, {.d = 64,
                  .dv = dv,
                  .h = 2,
                  .b = 3,
                  .n = 33,
                  .sketch_bits = bits,
                  .value_norm = bits / 4});
    }
  }
  for (const int32_t stride : kStrides) {
    for (const int64_t n : kAroundStride) {
      add(cases, {.d = 64, .dv = 24, .b = 3, .n = n, .sketch_bits = 4, .sketch_stride = stride});
    }
    add(cases, {.d = 80,
                .dv = 264,
                .h = 2,
                .b = 3,
                .n = 70,
                .codec = PKV_CODEC_POLAR4,
                .vote = PKV_VOTE_TIER,
                .sketch_bits = 2,
                .sketch_stride = stride,
                .value_norm = 1});
  }
  for (const int32_t stride : {1, 16, 64}) {
    for (const int64_t n : {1, 63, 64, 65, 128, 200}) {
      add(cases, {.d = 64,
                  .dv = 24,
                  .h = 2,
                  .b = 3,
                  .n = n,
                  .sketch_bits = 4,
                  .sketch_stride = stride,
                  .value_norm = 1,
                  .page = 64});
    }
  }
  add(cases, {.d = 80, .b = 3, .n = 600, .codec = PKV_CODEC_POLAR4, .page = 256});
  for (const int64_t n : {1, 31, 32, 257, 1025}) add(cases, {.d = 64, .b = 3, .n = n});
  add(cases, {.d = 24, .h = 2, .b = 9, .n = 8, .codec = PKV_CODEC_POLAR4});
}

}  // namespace pkv::conformance
