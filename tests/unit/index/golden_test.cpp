// Files that stay as they are: tests/golden, made from docs/format.md without this library.
#include <fstream>
#include <sstream>

#include "tests/unit/index/file_tools.h"
#include "tests/unit/pipeline/fixture.h"

namespace pkv::test {
namespace {

const std::string kValid = "tests/golden/valid/";
const std::string kRejected = "tests/golden/rejected/";

// The numbers of tests/golden/make_golden.py.
void fill_golden(Array& array, int64_t salt) {
  const auto& shape = array.shape();
  float* out = array.data();
  for (int64_t h = 0; h < shape[0]; ++h) {
    for (int64_t t = 0; t < shape[1]; ++t) {
      for (int64_t j = 0; j < shape[2]; ++j) {
        const int64_t mixed = h * 7919 + t * 104729 + j * 1299709 + salt * 15485863;
        *out++ = static_cast<float>(mixed % 251 - 125) / 32.0F;
      }
    }
  }
}

std::shared_ptr<const Codec> golden_codec(const Machine& machine, const Config& config,
                                          int32_t kv_heads) {
  const pkv_geometry g = value_of(config.geometry(kv_heads));
  std::vector<float> center, balance, value_center;
  for (int32_t i = 0; i < kv_heads * g.head_dim; ++i) {
    center.push_back(config.codec_options().center ? static_cast<float>(i % 7) * 0.125F - 0.375F
                                                   : 0.0F);
    balance.push_back(config.codec_options().balance ? static_cast<float>(i % 4) * 0.5F + 0.5F
                                                     : 1.0F);
  }
  for (int32_t i = 0; g.sketch_bits != 0 && i < kv_heads * g.value_dim; ++i) {
    value_center.push_back(static_cast<float>(i % 5) * 0.25F - 0.5F);
  }
  return value_of(Codec::create(machine.device,
                                value_of(CodecParams::create(g, center, balance, value_center)),
                                config.codec_options()));
}

struct GoldenCase {
  std::string name;
  Options options;
  int32_t kv_heads;
  std::vector<int64_t> lengths;
  int64_t capacity;
  int32_t without_values = -1;  // sequence
  bool has_bad_key = false;     // sequence 0, head 1, token 2
};

const std::vector<GoldenCase>& golden_cases() {
  static const std::vector<GoldenCase> cases = {
      {"default", {{"head_dim", "16"}, {"seed", "42"}}, 2, {5, 0, 35}, 40},
      {"paper_sketch2",
       {{"head_dim", "24"},
        {"value_dim", "8"},
        {"codec", "polar4"},
        {"vote", "tier"},
        {"tail", "sketch2"},
        {"center", "off"},
        {"balance", "off"},
        {"fit", "keys"},
        {"seed", "7"}},
       1,
       {3, 4},
       4},
      {"scalar5_sketch4_norms_bad_key",
       {{"head_dim", "32"},
        {"value_dim", "24"},
        {"codec", "scalar5"},
        {"rounds", "2"},
        {"tail", "sketch4"},
        {"value_norm", "on"},
        {"nonfinite", "isolate"},
        {"seed", "18446744073709551615"}},
       2,
       {6},
       100,
       -1,
       true},
      {"no_values",
       {{"head_dim", "8"}, {"v_source", "none"}, {"tail", "drop"}, {"seed", "1"}},
       3,
       {2, 1},
       2},
      {"some_without_values",
       {{"head_dim", "8"}, {"vote", "tier"}, {"tail", "mean"}, {"fit", "keys"}, {"seed", "5"}},
       1,
       {3, 3},
       8,
       1},
  };
  return cases;
}

std::shared_ptr<Index> golden_index(const Machine& machine, const GoldenCase& c) {
  const Config config = config_of(c.options);
  const auto codec = golden_codec(machine, config, c.kv_heads);
  const auto index = value_of(
      Index::create(machine.device, codec, static_cast<int32_t>(c.lengths.size()), c.capacity));
  const pkv_geometry& g = codec->geometry();
  for (int32_t s = 0; s < index->sequences(); ++s) {
    const int64_t tokens = c.lengths[static_cast<std::size_t>(s)];
    Array keys({c.kv_heads, tokens, g.head_dim});
    Array values({c.kv_heads, tokens, g.value_dim});
    fill_golden(keys, 2 * s);
    fill_golden(values, 2 * s + 1);
    if (c.has_bad_key) {
      keys.data()[(1 * tokens + 2) * g.head_dim + 3] = std::numeric_limits<float>::quiet_NaN();
    }
    const pkv_tensor value_tensor = values.tensor();
    const bool has_values = g.value_dim > 0 && s != c.without_values;
    require_ok(index->append(machine.stream, s, keys.tensor(), has_values ? &value_tensor : nullptr,
                             Index::Mode::kSync));
  }
  return index;
}

}  // namespace

TEST_CASE("golden: saving writes exactly these bytes") {
  Machine machine;
  Folder folder;
  for (const GoldenCase& c : golden_cases()) {
    CAPTURE(c.name);
    const auto index = golden_index(machine, c);
    require_ok(index->save_sync(machine.stream, folder.file(c.name), false));
    const std::string saved = read_file(folder.file(c.name));
    const std::string golden = read_file(kValid + c.name + ".pkv");
    CHECK(saved.size() == golden.size());
    const auto differ = std::mismatch(saved.begin(), saved.end(), golden.begin(), golden.end());
    const auto first_difference = differ.first - saved.begin();
    CAPTURE(first_difference);
    CHECK((saved == golden));
  }
}

TEST_CASE("golden: loading gives what was saved, and saving that the same bytes") {
  Machine machine;
  Folder folder;
  for (const GoldenCase& c : golden_cases()) {
    CAPTURE(c.name);
    const auto original = golden_index(machine, c);
    const auto loaded =
        value_of(Index::load_sync(machine.device, machine.stream, kValid + c.name + ".pkv"));
    CHECK((content_of(machine, *loaded) == content_of(machine, *original)));
    CHECK(loaded->capacity() == c.capacity);
    CHECK(loaded->codec()->options().isolate == (c.has_bad_key));
    require_ok(loaded->save_sync(machine.stream, folder.file(c.name), false));
    CHECK((read_file(folder.file(c.name)) == read_file(kValid + c.name + ".pkv")));
  }
}

TEST_CASE("golden: an unknown optional section is skipped") {
  Machine machine;
  const auto plain =
      value_of(Index::load_sync(machine.device, machine.stream, kValid + "default.pkv"));
  const auto extended = value_of(
      Index::load_sync(machine.device, machine.stream, kValid + "unknown_optional_section.pkv"));
  CHECK((content_of(machine, *plain) == content_of(machine, *extended)));
}

TEST_CASE("golden: rejected files are refused with their reason, by load and by restore") {
  Machine machine;
  const auto index = golden_index(machine, golden_cases().front());
  const std::string before = content_of(machine, *index);
  std::ifstream expected(kRejected + "expected.txt");
  REQUIRE(expected.good());
  int files = 0;
  for (std::string line; std::getline(expected, line); ++files) {
    std::istringstream words(line);
    std::string name, code, text;
    words >> name >> code >> std::ws;
    std::getline(words, text);
    const std::string path = kRejected + name + ".pkv";
    const absl::Status loaded = Index::load_sync(machine.device, machine.stream, path).status();
    const absl::Status restored = index->restore_sync(machine.stream, path);
    for (const absl::Status& status : {loaded, restored}) {
      CAPTURE(name);
      const std::string found = text_of(status);
      CAPTURE(found);
      CHECK(contains(found, code + ": "));
      CHECK(contains(found, text));
      CHECK(contains(found, path));
    }
  }
  CHECK(files >= 30);
  CHECK((content_of(machine, *index) == before));
}

}  // namespace pkv::test
