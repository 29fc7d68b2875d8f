// Damaged and hostile .pkv files: refused, and the index that was to be replaced stays as it was.
#include <fstream>

#include "tests/unit/index/file_tools.h"
#include "tests/unit/pipeline/fixture.h"

namespace pkv::test {
namespace {

// A file of about 4 KB, and an index in use that could take it.
struct Setup {
  Setup() {
    Array keys({2, 40, 24});
    Array values({2, 40, 8});
    fill_random(keys.numbers(), 1);
    fill_random(values.numbers(), 2);
    const pkv_tensor value_tensor = values.tensor();
    require_ok(saved->append(machine.stream, 0, keys.tensor(), &value_tensor, Index::Mode::kSync));
    const Tokens some_keys(keys, 3, 9);
    const Tokens some_values(values, 3, 9);
    require_ok(saved->append(machine.stream, 1, some_keys.tensor, &some_values.tensor,
                             Index::Mode::kSync));
    require_ok(
        used->append(machine.stream, 1, some_keys.tensor, &some_values.tensor, Index::Mode::kSync));
    before = content_of(machine, *used);
    require_ok(saved->save_sync(machine.stream, path, false));
    good = read_file(path);
  }

  absl::Status restore(const std::string& bytes) {
    write_file(path, bytes);
    return used->restore_sync(machine.stream, path);
  }

  Machine machine;
  Folder folder;
  const std::string path = folder.file("a.pkv");
  const Config config = config_of(
      {{"head_dim", "24"}, {"value_dim", "8"}, {"tail", "sampled"}, {"value_norm", "on"}});
  std::shared_ptr<const Codec> codec = codec_of(machine, config, 2);
  std::shared_ptr<Index> saved = value_of(Index::create(machine.device, codec, 2, 64));
  std::shared_ptr<Index> used = value_of(Index::create(machine.device, codec, 2, 64));
  std::string before;
  std::string good;
};

// Address space in use at most so far, in KiB.
int64_t peak_kib() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("VmPeak:", 0) == 0) return std::stoll(line.substr(7));
  }
  return 0;
}

}  // namespace

TEST_CASE("damage: each byte of a file, changed in turn, is noticed") {
  Setup setup;
  REQUIRE(setup.good.size() > 3500);
  REQUIRE(setup.good.size() < 8000);
  int64_t accepted = 0;
  for (std::size_t i = 0; i < setup.good.size(); ++i) {
    std::string bytes = setup.good;
    bytes[i] = static_cast<char>(bytes[i] ^ "\x01\x80\xff"[i % 3]);
    const absl::Status status = setup.restore(bytes);
    if (status.code() == absl::StatusCode::kDataLoss) continue;
    ++accepted;
    MESSAGE("byte ", i, ": ", text_of(status));
  }
  CHECK(accepted == 0);
  CHECK((content_of(setup.machine, *setup.used) == setup.before));
  require_ok(setup.restore(setup.good));  // the same bytes unchanged are fine
  CHECK((content_of(setup.machine, *setup.used) == content_of(setup.machine, *setup.saved)));
}

TEST_CASE("damage: a file cut at any length, or longer, is noticed") {
  Setup setup;
  int64_t accepted = 0;
  for (std::size_t size = 0; size < setup.good.size(); ++size) {
    const absl::Status status = setup.restore(setup.good.substr(0, size));
    if (status.code() != absl::StatusCode::kDataLoss) ++accepted;
  }
  for (const std::size_t more : {1, 63, 64, 4096}) {
    const absl::Status status = setup.restore(setup.good + std::string(more, '\0'));
    if (status.code() != absl::StatusCode::kDataLoss) ++accepted;
  }
  CHECK(accepted == 0);
  CHECK((content_of(setup.machine, *setup.used) == setup.before));
}

TEST_CASE("damage: any count or size under checksums that fit is refused at once") {
  Setup setup;
  struct Field {
    std::string what;
    std::size_t offset;
    bool is_wide;
  };
  std::vector<Field> fields = {{"file bytes", 16, true}, {"sections", 24, false}};
  for (std::size_t entry = 64; setup.good.compare(entry, 4, std::string(4, '\0')) != 0;
       entry += 32) {
    const std::string type = setup.good.substr(entry, 4);
    fields.push_back({type + " offset", entry + 8, true});
    fields.push_back({type + " bytes", entry + 16, true});
    if (entry + 32 >= section_at(setup.good, "GEOM")) break;
  }
  const std::size_t geometry = section_at(setup.good, "GEOM");
  for (std::size_t i = 0; i < 14; ++i) {
    fields.push_back({"GEOM field " + std::to_string(i), geometry + 4 * i, false});
  }
  fields.push_back({"capacity", geometry + 64, true});
  fields.push_back({"levels", geometry + 72, true});
  fields.push_back({"sketch_stride", geometry + 80, false});
  fields.push_back({"fit_picked", geometry + 84, false});
  const std::size_t sequences = section_at(setup.good, "SEQS");
  for (const std::size_t s : {0, 1}) {
    fields.push_back({"length", sequences + 16 * s, true});
    fields.push_back({"good keys", section_at(setup.good, "GOOD") + 8 * s, true});
  }
  CHECK(fields.size() > 40);
  const int64_t peak = peak_kib();
  for (const Field& field : fields) {
    for (const uint64_t value : {uint64_t{1} << 31, (uint64_t{1} << 31) - 1, uint64_t{1} << 32,
                                 (uint64_t{1} << 61) + 1, uint64_t{1} << 63, ~uint64_t{0}}) {
      std::string bytes = setup.good;
      if (field.is_wide) {
        set_number(bytes, field.offset, value);
      } else {
        const auto narrow = static_cast<uint32_t>(value);
        if (narrow <= 1) continue;  // nothing hostile is left of it
        set_number(bytes, field.offset, narrow);
      }
      // Changing the table's own checksummed fields needs the table mended, not the sections.
      if (field.offset >= 64 && field.offset < geometry) {
        set_number(bytes, 32,
                   checksum(bytes.data() + 64, 32 * std::size_t{number_at<uint32_t>(bytes, 24)}));
        mend_header(bytes);
      } else if (field.offset < 64) {
        mend_header(bytes);
      } else {
        mend(bytes);
      }
      // Capacity may well be another one: only what lies past its range is refused.
      if (field.what == "capacity" && value == (uint64_t{1} << 31) - 1) continue;
      const absl::Status status = setup.restore(bytes);
      CAPTURE(field.what);
      CAPTURE(value);
      const std::string text = text_of(status);
      CAPTURE(text);
      CHECK((status.code() == absl::StatusCode::kDataLoss ||
             status.code() == absl::StatusCode::kFailedPrecondition));
    }
  }
  CHECK(peak_kib() - peak < 64 * 1024);
  CHECK((content_of(setup.machine, *setup.used) == setup.before));
}

TEST_CASE("damage: another version is refused with both numbers") {
  Setup setup;
  std::string bytes = setup.good;
  set_number<uint32_t>(bytes, 12, 2);
  const absl::Status unmended = setup.restore(bytes);
  check_refused(unmended, absl::StatusCode::kDataLoss, {"version 2", "reads 1"});
  mend_header(bytes);
  check_refused(setup.restore(bytes), absl::StatusCode::kFailedPrecondition,
                {"format version", "2", "1"});
  CHECK((content_of(setup.machine, *setup.used) == setup.before));
}

TEST_CASE("damage: a fault in the last plane is found after the others were read") {
  Setup setup;
  std::string bytes = setup.good;
  bytes[section_at(bytes, "VNRM")] ^= 1;
  check_refused(setup.restore(bytes), absl::StatusCode::kDataLoss, {"VNRM", "offset"});
  CHECK((content_of(setup.machine, *setup.used) == setup.before));
  check_refused(Index::load_sync(setup.machine.device, setup.machine.stream, setup.path).status(),
                absl::StatusCode::kDataLoss, {"VNRM"});
}

}  // namespace pkv::test
