// Saving, loading, restoring. docs/format.md.
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <cmath>
#include <limits>

#include "core/pipeline/step.h"
#include "tests/unit/index/file_tools.h"
#include "tests/unit/pipeline/fixture.h"

namespace pkv::test {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

const Options kSmall = {{"head_dim", "16"}, {"vote", "tier"}, {"tail", "sketch2"}};

std::shared_ptr<Index> index_of(const Machine& machine, const Options& options,
                                std::vector<int64_t> lengths, int64_t capacity, uint32_t seed = 1) {
  const auto codec = codec_of(machine, config_of(options), 2);
  const pkv_geometry& g = codec->geometry();
  const auto index = value_of(
      Index::create(machine.device, codec, static_cast<int32_t>(lengths.size()), capacity));
  for (int32_t s = 0; s < index->sequences(); ++s) {
    Array keys({2, lengths[static_cast<std::size_t>(s)], g.head_dim});
    Array values({2, lengths[static_cast<std::size_t>(s)], g.value_dim});
    fill_random(keys.numbers(), seed + static_cast<uint32_t>(s));
    fill_random(values.numbers(), seed + 100);
    // A bad key, which the append below isolates.
    if (keys.shape()[1] > 6) keys.data()[2 * g.head_dim + 1] = kNan;
    const pkv_tensor value_tensor = values.tensor();
    require_ok(index->append(machine.stream, s, keys.tensor(),
                             g.value_dim > 0 ? &value_tensor : nullptr, Index::Mode::kEnqueue));
  }
  return index;
}

}  // namespace

TEST_CASE("save and load: the same content for every codec, vote and sketch; appends go on") {
  Machine machine;
  Folder folder;
  int file = 0;
  for (const char* codec : {"polar4", "scalar4", "scalar5"}) {
    for (const char* vote : {"tier", "graded"}) {
      for (const char* tail : {"drop", "mean", "sampled", "sketch2", "sketch4"}) {
        CAPTURE(codec);
        CAPTURE(vote);
        CAPTURE(tail);
        const Options options = {{"head_dim", "24"},
                                 {"value_dim", "16"},
                                 {"codec", codec},
                                 {"vote", vote},
                                 {"tail", tail}};
        const auto saved = index_of(machine, options, {33, 0, 7}, 64);
        const std::string path = folder.file(std::to_string(file++));
        require_ok(saved->save_sync(machine.stream, path, false));
        const auto loaded = value_of(Index::load_sync(machine.device, machine.stream, path));
        CHECK((content_of(machine, *loaded) == content_of(machine, *saved)));
        for (const auto& index : {saved, loaded}) {
          Array keys({2, 9, 24});
          Array values({2, 9, 16});
          fill_random(keys.numbers(), 77);
          fill_random(values.numbers(), 78);
          const pkv_tensor value_tensor = values.tensor();
          require_ok(
              index->append(machine.stream, 2, keys.tensor(), &value_tensor, Index::Mode::kSync));
        }
        CHECK((content_of(machine, *loaded) == content_of(machine, *saved)));
      }
    }
  }
  CHECK(file == 30);
}

TEST_CASE("save: records of more than one piece of staging come back") {
  Machine machine;
  Folder folder;
  // 18 bytes a record: a piece holds 58,254 of them; with a sketch 36, which leaves the next piece
  // to begin between two sketches.
  for (const char* tail : {"mean", "sampled"}) {
    const auto saved = index_of(machine, {{"head_dim", "32"}, {"vote", "tier"}, {"tail", tail}},
                                {60000, 100}, 60000);
    const std::string path = folder.file(tail);
    require_ok(saved->save_sync(machine.stream, path, false));
    const auto loaded = value_of(Index::load_sync(machine.device, machine.stream, path));
    CHECK((content_of(machine, *loaded) == content_of(machine, *saved)));
  }
}

TEST_CASE("restore: replaces content and lengths, whatever capacities are, and plans go on") {
  Machine machine;
  Folder folder;
  const auto saved = index_of(machine, kSmall, {33, 7}, 64);
  const auto used = index_of(machine, kSmall, {5, 50}, 50, 9);
  require_ok(saved->save_sync(machine.stream, folder.file("a"), false));
  pkv_plan_desc desc{};
  desc.batch = 2;
  desc.query_heads = 2;
  desc.owns_scratch = 1;
  const auto plan = value_of(Plan::create(used, config_of(kSmall), desc));
  require_ok(used->restore_sync(machine.stream, folder.file("a")));
  CHECK((content_of(machine, *used) == content_of(machine, *saved)));
  CHECK(used->capacity() == 50);

  const auto reference = value_of(Plan::create(saved, config_of(kSmall), desc));
  Array query({2, 2, 16});
  fill_random(query.numbers(), 4);
  std::vector<std::vector<int32_t>> found;
  for (const Plan* p : {plan.get(), reference.get()}) {
    const auto rows = static_cast<std::size_t>(4);
    std::vector<int32_t> positions(rows * 100), counts(rows);
    std::vector<int32_t> candidates(rows * static_cast<std::size_t>(p->candidates()));
    std::vector<int32_t> candidate_counts(rows);
    std::vector<float> estimates(candidates.size()), rest(rows), samples(rows * 512);
    pkv_hits hits{};
    hits.positions = positions.data();
    hits.counts = counts.data();
    hits.candidates = candidates.data();
    hits.candidate_counts = candidate_counts.data();
    hits.estimates = estimates.data();
    hits.rest_lse = rest.data();
    hits.sample_estimates = samples.data();
    require_ok(retrieve(*p, machine.stream, query.tensor(), nullptr, hits));
    CHECK(counts[0] == 32);  // one is bad
    CHECK(counts[3] == 7);
    found.push_back(positions);
  }
  CHECK((found[0] == found[1]));
}

TEST_CASE("restore: a file with more tokens than there is room for") {
  Machine machine;
  Folder folder;
  const auto saved = index_of(machine, kSmall, {3, 33}, 64);
  const auto small = index_of(machine, kSmall, {5, 5}, 32, 9);
  const std::string before = content_of(machine, *small);
  require_ok(saved->save_sync(machine.stream, folder.file("a"), false));
  check_refused(small->restore_sync(machine.stream, folder.file("a")),
                absl::StatusCode::kResourceExhausted, {"sequence 1", "33", "32"});
  CHECK((content_of(machine, *small) == before));
}

TEST_CASE("restore: every field that differs is named with both values") {
  Machine machine;
  Folder folder;
  const Options base = {{"head_dim", "16"}, {"vote", "graded"}, {"tail", "mean"}, {"seed", "7"}};
  const auto used = index_of(machine, base, {5, 50}, 64);
  const std::string before = content_of(machine, *used);
  const std::string path = folder.file("a");
  struct Case {
    Options change;
    std::vector<std::string> parts;
  };
  const std::vector<Case> cases = {
      {{{"head_dim", "24"}}, {"head_dim", "24", "16"}},
      {{{"value_dim", "8"}}, {"value_dim", "8", "16"}},
      {{{"v_source", "k_prefix"}}, {"v_source", "2", "1"}},
      {{{"codec", "polar4"}}, {"codec", "1", "2"}},
      {{{"codec", "scalar5"}}, {"codec", "3", "2"}},
      {{{"vote", "tier"}}, {"vote", "1", "2"}},
      {{{"rounds", "2"}}, {"rounds", "2", "1"}},
      {{{"tail", "sketch4"}}, {"sketch_bits", "4", "0"}},
      {{{"tail", "sampled"}}, {"sketch_bits", "4", "0"}},
      {{{"value_norm", "on"}}, {"value_norm", "1", "0"}},
      {{{"center", "off"}}, {"center", "0", "1"}},
      {{{"balance", "off"}}, {"balance", "0", "1"}},
      {{{"fit", "keys"}}, {"fit_picked", "0", "1"}},
      {{{"seed", "8"}}, {"seed", "8", "7"}},
  };
  for (const Case& c : cases) {
    Options options = base;
    options.insert(options.end(), c.change.begin(), c.change.end());
    const auto other = index_of(machine, options, {5, 50}, 64);
    require_ok(other->save_sync(machine.stream, path, true));
    const absl::Status status = used->restore_sync(machine.stream, path);
    check_refused(status, absl::StatusCode::kFailedPrecondition,
                  {c.parts[0] + " of the file=" + c.parts[1], "of the index=" + c.parts[2]});
  }
  Options every = base;
  every.push_back({"tail", "sketch4"});
  Options sampled = base;
  sampled.push_back({"tail", "sampled"});
  require_ok(index_of(machine, every, {5, 50}, 64)->save_sync(machine.stream, path, true));
  check_refused(index_of(machine, sampled, {5, 50}, 64)->restore_sync(machine.stream, path),
                absl::StatusCode::kFailedPrecondition,
                {"sketch_stride of the file=1", "of the index=16"});
  const auto three = index_of(machine, base, {5, 50, 1}, 64);
  require_ok(three->save_sync(machine.stream, path, true));
  check_refused(used->restore_sync(machine.stream, path), absl::StatusCode::kFailedPrecondition,
                {"sequences of the file=3", "of the index=2"});
  const Config config = config_of(base);
  const pkv_geometry g = value_of(config.geometry(3));
  const std::vector<float> zeros(48, 0.0F), ones(48, 1.0F);
  const auto heads = value_of(Codec::create(
      machine.device, value_of(CodecParams::create(g, zeros, ones, {})), config.codec_options()));
  require_ok(
      value_of(Index::create(machine.device, heads, 2, 64))->save_sync(machine.stream, path, true));
  check_refused(used->restore_sync(machine.stream, path), absl::StatusCode::kFailedPrecondition,
                {"kv_heads of the file=3", "of the index=2"});
  CHECK((content_of(machine, *used) == before));
  // nonfinite is about appends to come, not about what is stored.
  Options isolate = base;
  isolate.push_back({"nonfinite", "isolate"});
  require_ok(index_of(machine, isolate, {5, 50}, 64)->save_sync(machine.stream, path, true));
  require_ok(used->restore_sync(machine.stream, path));
}

TEST_CASE("restore: fitted numbers are compared bit for bit") {
  Machine machine;
  Folder folder;
  const Config config = config_of(kSmall);
  const pkv_geometry g = value_of(config.geometry(1));
  const std::vector<float> center(16, 0.5F), balance(16, 2.0F), value_center(16, 0.0F);
  const auto index_with = [&](const std::vector<float>& c, const std::vector<float>& b,
                              const std::vector<float>& v) {
    const auto codec = value_of(Codec::create(
        machine.device, value_of(CodecParams::create(g, c, b, v)), config.codec_options()));
    return value_of(Index::create(machine.device, codec, 1, 10));
  };
  const auto used = index_with(center, balance, value_center);
  auto changed = center;
  changed[3] = std::nextafter(0.5F, 1.0F);
  require_ok(index_with(changed, balance, value_center)
                 ->save_sync(machine.stream, folder.file("a"), false));
  check_refused(used->restore_sync(machine.stream, folder.file("a")),
                absl::StatusCode::kFailedPrecondition,
                {"center[KV head 0, coordinate 3]", "0.500000", "0.5"});
  changed = balance;
  changed[15] = 1.0F;
  require_ok(index_with(center, changed, value_center)
                 ->save_sync(machine.stream, folder.file("b"), false));
  check_refused(used->restore_sync(machine.stream, folder.file("b")),
                absl::StatusCode::kFailedPrecondition, {"balance[KV head 0, coordinate 15]"});
  changed = value_center;
  changed[0] = -0.0F;
  require_ok(
      index_with(center, balance, changed)->save_sync(machine.stream, folder.file("c"), false));
  check_refused(used->restore_sync(machine.stream, folder.file("c")),
                absl::StatusCode::kFailedPrecondition, {"value_center[KV head 0, coordinate 0]"});
}

TEST_CASE("save: an existing file stays without leave to overwrite") {
  Machine machine;
  Folder folder;
  const std::string path = folder.file("a.pkv");
  write_file(path, "mine");
  const auto index = index_of(machine, kSmall, {3}, 8);
  check_refused(index->save_sync(machine.stream, path, false), absl::StatusCode::kAlreadyExists,
                {path});
  CHECK(read_file(path) == "mine");
  require_ok(index->save_sync(machine.stream, path, true));
  CHECK(folder.names().size() == 1);
  const auto loaded = value_of(Index::load_sync(machine.device, machine.stream, path));
  CHECK((content_of(machine, *loaded) == content_of(machine, *index)));
}

TEST_CASE("save: a failure names path and reason, and leaves nothing behind") {
  Machine machine;
  Folder folder;
  const auto index = index_of(machine, kSmall, {3}, 8);
  check_refused(index->save_sync(machine.stream, folder.file("missing/a"), false),
                absl::StatusCode::kInvalidArgument, {"missing/a", "No such file or directory"});
  write_file(folder.file("plain"), "x");
  check_refused(index->save_sync(machine.stream, folder.file("plain/a"), false),
                absl::StatusCode::kInvalidArgument, {"Not a directory"});
  std::filesystem::create_directory(folder.file("folder"));
  check_refused(index->save_sync(machine.stream, folder.file("folder"), true),
                absl::StatusCode::kInvalidArgument, {"folder"});
  check_refused(index->save_sync(machine.stream, "", true), absl::StatusCode::kInvalidArgument,
                {"path is empty"});
  CHECK(folder.names().size() == 2);
}

// Stands in for a full disk: the same path through write, another errno.
TEST_CASE("save: a file that cannot grow is RESOURCE_EXHAUSTED and leaves the old one") {
  Machine machine;
  Folder folder;
  const std::string path = folder.file("a");
  write_file(path, "old");
  const auto index = index_of(machine, kSmall, {3}, 8);
  rlimit old{};
  REQUIRE(getrlimit(RLIMIT_FSIZE, &old) == 0);
  const auto handler = signal(SIGXFSZ, SIG_IGN);
  rlimit limited = old;
  limited.rlim_cur = 1000;
  REQUIRE(setrlimit(RLIMIT_FSIZE, &limited) == 0);
  const absl::Status status = index->save_sync(machine.stream, path, true);
  REQUIRE(setrlimit(RLIMIT_FSIZE, &old) == 0);
  signal(SIGXFSZ, handler);
  check_refused(status, absl::StatusCode::kResourceExhausted, {path});
  CHECK(read_file(path) == "old");
  CHECK(folder.names().size() == 1);
}

TEST_CASE("load: what is no file") {
  Machine machine;
  Folder folder;
  const auto load = [&](const std::string& path) {
    return Index::load_sync(machine.device, machine.stream, path).status();
  };
  check_refused(load(folder.file("none")), absl::StatusCode::kNotFound, {"none"});
  check_refused(load(folder.file("")), absl::StatusCode::kInvalidArgument, {"not a regular file"});
  REQUIRE(mkfifo(folder.file("pipe").c_str(), 0600) == 0);
  check_refused(load(folder.file("pipe")), absl::StatusCode::kInvalidArgument,
                {"not a regular file"});
  check_refused(load(""), absl::StatusCode::kInvalidArgument, {"path is empty"});
}

}  // namespace pkv::test
