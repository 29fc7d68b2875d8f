// Index: append, reset, export, statistics. docs/algorithm.md, section 3.
#include <cmath>
#include <limits>

#include "tests/unit/pipeline/fixture.h"

namespace pkv::test {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

struct Setup {
  explicit Setup(const Options& options = {{"head_dim", "16"}, {"tail", "mean"}},
                 int32_t sequences = 3, int64_t capacity = 100)
      : config(config_of(options)),
        codec(codec_of(machine, config, 2)),
        index(value_of(Index::create(machine.device, codec, sequences, capacity))) {
    fill_random(keys.numbers(), 1);
    fill_random(values.numbers(), 2);
  }
  absl::Status append(int32_t sequence, int64_t begin, int64_t count,
                      Index::Mode mode = Index::Mode::kSync) {
    const Tokens k(keys, begin, count);
    const Tokens v(values, begin, count);
    return index->append(machine.stream, sequence, k.tensor, &v.tensor, mode);
  }

  Machine machine;
  Config config;
  std::shared_ptr<const Codec> codec;
  std::shared_ptr<Index> index;
  Array keys{{2, 90, 16}};
  Array values{{2, 90, 16}};
};

}  // namespace

TEST_CASE("append: in pieces equals at once, byte for byte, for every kind of record") {
  for (const char* codec : {"polar4", "scalar4", "scalar5"}) {
    for (const char* vote : {"tier", "graded"}) {
      for (const char* tail : {"mean", "sampled", "sketch2", "sketch4"}) {
        CAPTURE(codec);
        CAPTURE(vote);
        CAPTURE(tail);
        const Options options = {{"head_dim", "16"},
                                 {"codec", codec},
                                 {"vote", vote},
                                 {"tail", tail},
                                 {"value_norm", "on"}};
        Setup whole(options);
        Setup pieces(options);
        require_ok(whole.append(1, 0, 90));
        int64_t done = 0;
        for (const int64_t count : {1, 0, 31, 32, 26}) {
          require_ok(pieces.append(1, done, count));
          done += count;
        }
        CHECK(done == 90);
        CHECK(content_of(pieces.machine, *pieces.index) == content_of(whole.machine, *whole.index));
      }
    }
  }
}

TEST_CASE("append: more tokens than one piece of scratch holds equals token by token") {
  const Options options = {{"head_dim", "8"}, {"vote", "tier"}, {"tail", "drop"}};
  Machine machine;
  const Config config = config_of(options);
  const auto codec = codec_of(machine, config, 1);
  constexpr int64_t kTokens = 20000;  // two and a half chunks
  Array keys({1, kTokens, 8});
  fill_random(keys.numbers(), 3);
  const auto whole = value_of(Index::create(machine.device, codec, 1, kTokens));
  const auto pieces = value_of(Index::create(machine.device, codec, 1, kTokens));
  require_ok(whole->append(machine.stream, 0, keys.tensor(), nullptr, Index::Mode::kSync));
  for (int64_t begin = 0; begin < kTokens; begin += 777) {
    const Tokens part(keys, begin, std::min<int64_t>(777, kTokens - begin));
    require_ok(pieces->append(machine.stream, 0, part.tensor, nullptr, Index::Mode::kEnqueue));
  }
  CHECK(content_of(machine, *pieces) == content_of(machine, *whole));
}

TEST_CASE("append: sequences do not touch each other") {
  Setup both({{"head_dim", "16"}, {"vote", "tier"}});
  Setup alone({{"head_dim", "16"}, {"vote", "tier"}});
  require_ok(both.append(0, 0, 40));
  require_ok(both.append(2, 40, 50));
  require_ok(alone.append(2, 40, 50));
  for (int32_t head : {0, 1}) {
    CHECK(records_of_row(both.machine, *both.index, 2, head) ==
          records_of_row(alone.machine, *alone.index, 2, head));
  }
  require_ok(both.index->reset(both.machine.stream, 0));
  CHECK(content_of(both.machine, *both.index) == content_of(alone.machine, *alone.index));
}

TEST_CASE("append: a refused key changes nothing and is named") {
  Setup setup({{"head_dim", "16"}, {"vote", "tier"}});
  require_ok(setup.append(1, 0, 10));
  const std::string before = content_of(setup.machine, *setup.index);
  // KV head 1, token 37 of the array: position 10 + 27.
  setup.keys.numbers()[(90 + 37) * 16 + 5] = kNan;
  check_refused(setup.append(1, 10, 40), absl::StatusCode::kInvalidArgument,
                {"sequence 1", "KV head 1", "position 37", "nonfinite=isolate"});
  CHECK(content_of(setup.machine, *setup.index) == before);
  setup.keys.numbers()[(90 + 37) * 16 + 5] = 0.5F;
  setup.values.numbers()[12 * 16] = kInf;
  check_refused(setup.append(1, 10, 40), absl::StatusCode::kInvalidArgument,
                {"KV head 0", "position 12"});
  CHECK(content_of(setup.machine, *setup.index) == before);
}

TEST_CASE("append: a refusal in a later piece of scratch takes back the earlier ones") {
  Machine machine;
  const auto codec =
      codec_of(machine, config_of({{"head_dim", "8"}, {"vote", "tier"}, {"tail", "drop"}}), 1);
  Array keys({1, 9000, 8});
  fill_random(keys.numbers(), 3);
  keys.numbers()[8999 * 8] = kInf;
  const auto index = value_of(Index::create(machine.device, codec, 1, 9000));
  const std::string before = content_of(machine, *index);
  check_refused(index->append(machine.stream, 0, keys.tensor(), nullptr, Index::Mode::kSync),
                absl::StatusCode::kInvalidArgument, {"position 8999"});
  CHECK(content_of(machine, *index) == before);
}

TEST_CASE("append: isolated keys are counted and leave the others alone") {
  for (const bool is_enqueued : {true, false}) {
    // Enqueued appends isolate whatever the option says; with the option, waiting ones do too.
    const char* policy = is_enqueued ? "refuse" : "isolate";
    Setup setup({{"head_dim", "16"}, {"vote", "tier"}, {"nonfinite", policy}});
    setup.keys.numbers()[7 * 16 + 1] = kNan;
    const auto mode = is_enqueued ? Index::Mode::kEnqueue : Index::Mode::kSync;
    require_ok(setup.append(0, 0, 20, mode));
    const pkv_index_stats stats = value_of(setup.index->stats_sync(setup.machine.stream));
    CHECK(stats.tokens == 20);
    CHECK(stats.bad_keys == 1);
    CHECK(setup.index->good_counts()[0] == 19);
    CHECK(setup.index->good_counts()[1] == 20);
  }
}

TEST_CASE("append: what does not fit is refused with need and room") {
  Setup setup({{"head_dim", "16"}}, 3, 50);
  require_ok(setup.append(0, 0, 45));
  const std::string before = content_of(setup.machine, *setup.index);
  check_refused(setup.append(0, 45, 6), absl::StatusCode::kResourceExhausted,
                {"sequence 0", "needs 6", "room for 5", "capacity 50"});
  CHECK(content_of(setup.machine, *setup.index) == before);
  require_ok(setup.append(0, 45, 5));
  require_ok(setup.append(0, 0, 0));
  check_refused(setup.append(0, 0, 1), absl::StatusCode::kResourceExhausted, {"room for 0"});
  require_ok(setup.append(1, 0, 50));
}

TEST_CASE("append: shapes, dtypes, sequences and values are checked by name") {
  Setup setup;
  const auto append = [&](int32_t sequence, pkv_tensor keys, const pkv_tensor* values) {
    return setup.index->append(setup.machine.stream, sequence, keys, values, Index::Mode::kSync);
  };
  const pkv_tensor values = setup.values.tensor();
  for (const int32_t sequence : {-1, 3, INT32_MAX}) {
    check_refused(append(sequence, setup.keys.tensor(), &values), absl::StatusCode::kOutOfRange,
                  {"sequence=" + std::to_string(sequence), "0..2"});
  }
  Array repeated({8, 5, 16});  // keys already repeated to the query heads
  check_refused(append(0, repeated.tensor(), nullptr), absl::StatusCode::kInvalidArgument,
                {"keys", "8", "2"});
  Array wide({2, 5, 24});
  check_refused(append(0, wide.tensor(), nullptr), absl::StatusCode::kInvalidArgument,
                {"keys", "24", "16"});
  const Tokens fewer(setup.values, 0, 89);
  check_refused(append(0, setup.keys.tensor(), &fewer.tensor), absl::StatusCode::kInvalidArgument,
                {"values", "89", "90"});
  pkv_tensor integers = setup.keys.tensor();
  integers.dtype = PKV_DTYPE_I32;
  check_refused(append(0, integers, nullptr), absl::StatusCode::kInvalidArgument,
                {"keys", "i32", "f32, f16 or bf16"});
  pkv_tensor elsewhere = setup.keys.tensor();
  elsewhere.device_type = PKV_DEVICE_CUDA;
  check_refused(append(0, elsewhere, nullptr), absl::StatusCode::kInvalidArgument,
                {"keys", "cuda"});
  pkv_tensor nothing = setup.keys.tensor();
  nothing.data = nullptr;
  check_refused(append(0, nothing, nullptr), absl::StatusCode::kInvalidArgument, {"keys", "NULL"});
  CHECK(setup.index->length(0) == 0);

  for (const char* tail : {"sketch4", "sampled"}) {
    Setup sketch({{"head_dim", "16"}, {"tail", tail}});
    check_refused(sketch.index->append(sketch.machine.stream, 0, sketch.keys.tensor(), nullptr,
                                       Index::Mode::kSync),
                  absl::StatusCode::kInvalidArgument, {"values=NULL", "sketch"});
  }
  Setup none({{"head_dim", "16"}, {"v_source", "none"}, {"tail", "drop"}});
  check_refused(
      none.index->append(none.machine.stream, 0, none.keys.tensor(), &values, Index::Mode::kSync),
      absl::StatusCode::kInvalidArgument, {"values", "v_source=none"});
}

TEST_CASE("append: strided, reversed and offset views equal the packed tensor") {
  Setup packed;
  Setup strided;
  Array tokens_first({30, 2, 24});  // [token, head, D + 8], tokens backwards
  std::fill(tokens_first.numbers().begin(), tokens_first.numbers().end(), kNan);
  for (int64_t h = 0; h < 2; ++h) {
    for (int64_t t = 0; t < 30; ++t) {
      for (int64_t j = 0; j < 16; ++j) {
        tokens_first.data()[((29 - t) * 2 + h) * 24 + j] =
            packed.keys.data()[(h * 90 + t) * 16 + j];
      }
    }
  }
  const int64_t shape[3] = {2, 30, 16};
  const int64_t strides[3] = {24, -48, 1};
  pkv_tensor view = tokens_first.tensor();
  view.shape = shape;
  view.strides = strides;
  view.byte_offset = 29 * 48 * sizeof(float);
  const Tokens values(packed.values, 0, 30);
  require_ok(packed.append(0, 0, 30));
  require_ok(
      strided.index->append(strided.machine.stream, 0, view, &values.tensor, Index::Mode::kSync));
  CHECK(content_of(strided.machine, *strided.index) == content_of(packed.machine, *packed.index));
}

TEST_CASE("append: with v_source=k_prefix the values are the first dv coordinates") {
  const Options prefix = {
      {"head_dim", "16"}, {"value_dim", "8"}, {"v_source", "k_prefix"}, {"value_norm", "on"}};
  Setup implied(prefix);
  Setup given(prefix);
  Array values({2, 20, 8});
  for (int64_t h = 0; h < 2; ++h) {
    for (int64_t t = 0; t < 20; ++t) {
      for (int64_t j = 0; j < 8; ++j) {
        values.data()[(h * 20 + t) * 8 + j] = given.keys.data()[(h * 90 + t) * 16 + j];
      }
    }
  }
  const Tokens keys(given.keys, 0, 20);
  const pkv_tensor tensor = values.tensor();
  require_ok(
      given.index->append(given.machine.stream, 0, keys.tensor, &tensor, Index::Mode::kSync));
  require_ok(
      implied.index->append(implied.machine.stream, 0, keys.tensor, nullptr, Index::Mode::kSync));
  CHECK(content_of(implied.machine, *implied.index) == content_of(given.machine, *given.index));
  CHECK(implied.index->has_values(0));
}

TEST_CASE("append: a sequence remembers that a token came without values, until it is reset") {
  Setup setup;
  const Tokens keys(setup.keys, 0, 10);
  CHECK(setup.index->has_values(0));
  require_ok(
      setup.index->append(setup.machine.stream, 0, keys.tensor, nullptr, Index::Mode::kSync));
  require_ok(setup.append(0, 10, 10));
  CHECK_FALSE(setup.index->has_values(0));
  CHECK(setup.index->has_values(1));
  require_ok(setup.index->reset(setup.machine.stream, 0));
  CHECK(setup.index->has_values(0));
}

TEST_CASE("append: streams that alternate share the scratch in order") {
  Setup one;
  Setup two;
  const Stream other = value_of(Stream::create(two.machine.device));
  for (int64_t begin = 0; begin < 90; begin += 10) {
    const int32_t sequence = static_cast<int32_t>(begin / 10 % 2);
    require_ok(one.append(sequence, begin, 10));
    const Tokens k(two.keys, begin, 10);
    const Tokens v(two.values, begin, 10);
    require_ok(two.index->append(sequence == 0 ? two.machine.stream : other, sequence, k.tensor,
                                 &v.tensor, Index::Mode::kEnqueue));
  }
  CHECK(content_of(two.machine, *two.index) == content_of(one.machine, *one.index));
}

TEST_CASE("export: any range of records, and only what is there") {
  Setup setup;
  require_ok(setup.append(2, 0, 33));
  const auto bytes = plane_bytes(setup.index->geometry());
  std::vector<std::vector<uint8_t>> planes(kPlanes);
  std::array<uint8_t*, kPlanes> pointers{};
  for (std::size_t p = 0; p < planes.size(); ++p) {
    planes[p].assign(static_cast<std::size_t>(bytes[p] * 5), 0xaa);
    if (bytes[p] != 0) pointers[p] = planes[p].data();
  }
  const pkv_records out = records_of(pointers, 0);
  const auto export_range = [&](int32_t sequence, int32_t head, int64_t begin, int64_t count) {
    return setup.index->export_sync(setup.machine.stream, sequence, head, begin, count, out);
  };
  require_ok(export_range(2, 1, 28, 5));
  const std::string row = records_of_row(setup.machine, *setup.index, 2, 1);
  CHECK(row.substr(28 * 2, 5 * 2) == std::string(planes[0].begin(), planes[0].end()));

  check_refused(export_range(3, 0, 0, 1), absl::StatusCode::kOutOfRange, {"sequence=3", "0..2"});
  check_refused(export_range(2, 2, 0, 1), absl::StatusCode::kOutOfRange, {"kv_head=2", "0..1"});
  check_refused(export_range(2, 0, 34, 0), absl::StatusCode::kOutOfRange, {"begin=34", "0..33"});
  check_refused(export_range(2, 0, 30, 4), absl::StatusCode::kOutOfRange, {"count=4", "0..3"});
  check_refused(export_range(2, 0, 0, -1), absl::StatusCode::kOutOfRange, {"count=-1"});
  require_ok(export_range(0, 0, 0, 0));
  pkv_records missing = out;
  missing.codes = nullptr;
  check_refused(setup.index->export_sync(setup.machine.stream, 2, 0, 0, 1, missing),
                absl::StatusCode::kInvalidArgument, {"codes=NULL"});
}

TEST_CASE("export: sketches are those of the range's multiples of the stride, in any pieces") {
  Setup setup(Options{{"head_dim", "16"}});  // a sketch at 0, 16, .., 80
  require_ok(setup.append(2, 0, 90));
  const pkv_geometry& g = setup.index->geometry();
  REQUIRE(g.sketch_stride == 16);
  // Plane by plane the bytes of positions [begin, begin + count), behind them 0xaa.
  const auto planes_of_range = [&](int64_t begin, int64_t count) {
    std::vector<std::string> planes;
    std::array<uint8_t*, kPlanes> pointers{};
    for (const int64_t bytes : plane_bytes(g)) {
      planes.emplace_back(static_cast<std::size_t>(bytes * (count + 1)), '\xaa');
    }
    for (std::size_t p = 0; p < planes.size(); ++p) {
      if (!planes[p].empty()) pointers[p] = reinterpret_cast<uint8_t*>(planes[p].data());
    }
    require_ok(setup.index->export_sync(setup.machine.stream, 2, 1, begin, count,
                                        records_of(pointers, count)));
    return planes;
  };
  const auto all = planes_of_range(0, 90);
  const auto bytes = plane_bytes(g);
  for (const int64_t begin : {0, 1, 15, 16, 17, 33, 89, 90}) {
    for (const int64_t count : {0, 1, 15, 16, 17, 57}) {
      if (begin + count > 90) continue;
      CAPTURE(begin);
      CAPTURE(count);
      const auto some = planes_of_range(begin, count);
      for (std::size_t p = 0; p < kPlanes; ++p) {
        CAPTURE(p);
        int64_t before = begin;
        int64_t entries = count;
        if (p >= 4 && p <= 6) {
          before = entries = 0;
          for (int64_t t = 0; t < begin + count; t += 16) (t < begin ? before : entries) += 1;
        }
        const auto size = static_cast<std::size_t>(entries * bytes[p]);
        CHECK(some[p].substr(0, size) ==
              all[p].substr(static_cast<std::size_t>(before * bytes[p]), size));
        CHECK(some[p].substr(size) == std::string(some[p].size() - size, '\xaa'));
      }
    }
  }
}

TEST_CASE("index: sizes are limited before anything is allocated") {
  Machine machine;
  const auto codec = codec_of(machine, config_of({{"head_dim", "128"}, {"tail", "drop"}}), 8);
  for (const int64_t capacity :
       {int64_t{0}, int64_t{-1}, int64_t{1} << 31, (int64_t{1} << 32) + 1, int64_t{1} << 62}) {
    check_refused(IndexSizes::create(*machine.device, *codec, 1, capacity).status(),
                  absl::StatusCode::kInvalidArgument,
                  {"capacity=" + std::to_string(capacity), "1..2147483647"});
  }
  for (const int32_t sequences : {0, -1, (1 << 20) + 1}) {
    check_refused(IndexSizes::create(*machine.device, *codec, sequences, 10).status(),
                  absl::StatusCode::kInvalidArgument,
                  {"sequences=" + std::to_string(sequences), "1..1048576"});
  }
  // 2^20 sequences of 2^31 - 1 tokens, 8 KV heads of 68 bytes: past 2^60, still counted exactly.
  const IndexSizes sizes =
      value_of(IndexSizes::create(*machine.device, *codec, 1 << 20, INT32_MAX));
  CHECK(sizes.record_bytes > int64_t{1} << 60);
  const auto wide = codec_of(machine, config_of({{"head_dim", "576"}, {"codec", "scalar5"}}), 64);
  check_refused(
      IndexSizes::create(*machine.device, *wide, 1 << 20, INT32_MAX).status(),
      absl::StatusCode::kInvalidArgument,
      {"key records too large", "sequences=1048576", "kv_heads=64", "capacity=2147483647"});
}

TEST_CASE("index: the bytes announced are those held") {
  Setup setup({{"head_dim", "16"}, {"vote", "tier"}, {"tail", "sampled"}}, 5, 1000);
  const IndexSizes sizes =
      value_of(IndexSizes::create(*setup.machine.device, *setup.codec, 5, 1000));
  const pkv_index_stats stats = value_of(setup.index->stats_sync(setup.machine.stream));
  CHECK(stats.device_bytes == sizes.total_bytes);
  CHECK(stats.bytes_per_key == 2 * 4 + 2 + (2 * 4 + 2) / 16.0);
  CHECK(stats.capacity == 1000);
  CHECK(stats.sequences == 5);
}

}  // namespace pkv::test
