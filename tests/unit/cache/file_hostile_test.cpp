// Files of a cache whose fields are wrong under checksums that fit: docs/format.md, section 3.
#include <algorithm>
#include <set>

#include "tests/unit/cache/naive.h"
#include "tests/unit/cache/path.h"
#include "tests/unit/index/file_tools.h"

namespace pkv::test {
namespace {

struct Field {
  std::string what;
  std::size_t offset;
  std::size_t bytes;
};

// Header, table, and every field of the sections that are not rows, queries or codec numbers.
std::vector<Field> fields_of(const std::string& file, int64_t fits, int64_t fit_bytes,
                             int64_t queries, int64_t query_bytes) {
  std::vector<Field> fields = {{"magic", 0, 8},    {"byte order", 8, 4}, {"version", 12, 4},
                               {"bytes", 16, 8},   {"sections", 24, 4},  {"reserved", 28, 4},
                               {"reserved", 40, 8}};
  const auto sections = number_at<uint32_t>(file, 24);
  for (std::size_t entry = 64; entry < 64 + 32 * std::size_t{sections}; entry += 32) {
    const std::string type = file.substr(entry, 4);
    fields.push_back({type + " type", entry, 4});
    fields.push_back({type + " flags", entry + 4, 4});
    fields.push_back({type + " offset", entry + 8, 8});
    fields.push_back({type + " size", entry + 16, 8});
  }
  const auto all = [&](const char* type, std::size_t bytes, std::size_t first, std::size_t last) {
    for (std::size_t at = first; at < last; at += bytes) {
      fields.push_back({type + (" + " + std::to_string(at)), section_at(file, type) + at, bytes});
    }
  };
  all("GEOM", 4, 0, 56);
  all("GEOM", 8, 56, 80);
  all("GEOM", 4, 80, 88);
  all("CSHP", 4, 0, 32);
  all("CSHP", 8, 32, 64);
  all("CLAY", 4, 0, 8);
  all("CLAY", 8, 8, 16);
  all("CSEQ", 8, 0, 48);
  for (int64_t i = 0; i < fits; ++i) {
    const auto at = static_cast<std::size_t>(i * fit_bytes);
    all("CFIT", 8, at, at + 16);
  }
  for (int64_t i = 0; i < queries; ++i) {
    const auto at = static_cast<std::size_t>(i * query_bytes);
    all("CQRY", 8, at, at + 8);
  }
  return fields;
}

std::vector<uint64_t> values_for(uint64_t was, std::size_t bytes) {
  const uint64_t top = bytes == 8 ? uint64_t{1} << 63 : uint64_t{1} << 31;
  const uint64_t most = bytes == 8 ? ~uint64_t{0} : 0xffffffff;
  std::set<uint64_t> values = {0,         1,         2,         was - 1,  was + 1,      2 * was,
                               was ^ 32,  was ^ 512, was | top, top - 1,  top,          most,
                               most / 16, most - 7,  1 << 20,   1U << 31, was + 0x10000};
  std::set<uint64_t> out;
  for (const uint64_t value : values) {
    if ((value & most) != was) out.insert(value & most);
  }
  return {out.begin(), out.end()};
}

// Two sequences, one with fits and kept queries.
struct Setup {
  static Shape small() {
    Shape shape = small_shape();
    shape.capacity = 400;
    return shape;
  }
  Setup() : saved(small()), used(small()) {
    saved.append(saved.add(), ids_from(0, 140));
    saved.append(saved.add(), ids_from(500, 9));
    REQUIRE(saved.regions(0).fits > 1);
    REQUIRE_OK(pkv_cache_save_sync(saved.cache(), saved.stream(), -1, path.get(), 0));
    const std::vector<char> bytes = path.read();
    good.assign(bytes.begin(), bytes.end());
    used.append(used.add(), ids_from(77, 100));
    before = used.state(0);
  }

  // Whether it was loaded; then what was loaded can be used like any sequence, and is gone again.
  bool load(const std::string& bytes) {
    path.write({bytes.begin(), bytes.end()});
    int32_t sequences[4] = {-1, -1, -1, -1};
    int32_t count = 0;
    const pkv_status status =
        pkv_cache_load_sync(used.cache(), used.stream(), path.get(), 3, sequences, &count);
    if (status != PKV_OK) {
      CHECK((status == PKV_DATA_LOSS || status == PKV_FAILED_PRECONDITION ||
             status == PKV_RESOURCE_EXHAUSTED));
      CHECK(std::string(pkv_last_error()).find(path.get()) != std::string::npos);
      CHECK(count == 0);
      return false;
    }
    REQUIRE(count <= 3);
    for (int32_t i = 0; i < count; ++i) {
      const int64_t tokens = used.length(sequences[i]);
      REQUIRE(tokens <= used.shape().capacity);
      if (tokens < used.shape().capacity) used.decode({sequences[i]}, {ids_from(7, 1)});
      used.truncate(sequences[i], tokens / 2);
      REQUIRE_OK(pkv_cache_remove(used.cache(), used.stream(), sequences[i]));
    }
    return true;
  }

  const Path path;
  World saved, used;
  std::string good;
  std::vector<uint8_t> before;
};

TEST_CASE("file: any field changed under checksums that fit is refused, or loads what is usable") {
  Setup setup;
  const int64_t fits = setup.saved.regions(0).fits;
  const int64_t fit_bytes =
      static_cast<int64_t>(number_at<uint64_t>(setup.good, entry_of(setup.good, "CFIT") + 16)) /
      fits;
  const int64_t query_bytes = 8 + 8 * 4;
  const int64_t queries =
      static_cast<int64_t>(number_at<uint64_t>(setup.good, entry_of(setup.good, "CQRY") + 16)) /
      query_bytes;
  REQUIRE(queries > 4);
  const std::vector<Field> fields = fields_of(setup.good, fits, fit_bytes, queries, query_bytes);
  CHECK(fields.size() > 90);
  const int64_t held = setup.used.stats().allocated_bytes;
  int64_t loaded = 0, refused = 0;
  std::set<std::string> accepted;
  for (const Field& field : fields) {
    CAPTURE(field.what);
    uint64_t was = 0;
    std::memcpy(&was, setup.good.data() + field.offset, field.bytes);
    for (const uint64_t value : values_for(was, field.bytes)) {
      CAPTURE(value);
      std::string bytes = setup.good;
      std::memcpy(bytes.data() + field.offset, &value, field.bytes);
      if (field.offset >= 8 && field.offset < 64) {
        mend_header(bytes);
      } else if (field.offset >= 64) {
        // A table that points outside is mended as it is.
        const auto sections = number_at<uint32_t>(setup.good, 24);
        const std::size_t table = 32 * std::size_t{sections};
        if (field.offset >= 64 + table) {
          mend(bytes);
        } else {
          set_number(bytes, 32, checksum(bytes.data() + 64, table));
          mend_header(bytes);
        }
      }
      if (setup.load(bytes)) {
        ++loaded;
        accepted.insert(field.what);
      } else {
        ++refused;
      }
    }
  }
  CHECK(refused > 900);
  // nonfinite and capacity are not compared; what fits were made with and where queries belong is
  // the file's word, as long as it is in order.
  for (const std::string& what : accepted) {
    CAPTURE(what);
    const std::string type = what.substr(0, 4);
    CHECK((what == "GEOM + 48" || what == "GEOM + 64" || type == "CFIT" || type == "CQRY"));
  }
  CHECK(setup.used.stats().allocated_bytes <= held + (int64_t{1} << 24));
  CHECK(setup.used.state(0) == setup.before);
  CHECK(setup.load(setup.good));
}

TEST_CASE("file: shortened at every byte with checksums that fit, it is refused") {
  Setup setup;
  for (std::size_t bytes = 64; bytes < setup.good.size(); bytes += 7) {
    std::string cut = setup.good.substr(0, bytes);
    set_number(cut, 16, static_cast<uint64_t>(bytes));
    mend_header(cut);
    CAPTURE(bytes);
    CHECK(!setup.load(cut));
  }
  CHECK(setup.used.state(0) == setup.before);
}

}  // namespace
}  // namespace pkv::test
