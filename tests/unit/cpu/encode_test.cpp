// Stage encode of backend cpu, byte for byte that of cpu_ref. docs/algorithm.md, section 3.
#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "backends/cpu_ref/rotate.h"
#include "tests/unit/cpu/encode_world.h"
#include "tests/unit/cpu/keys.h"

namespace pkv {
namespace {

using test::encode_args;
using test::exported_by_cpu;
using test::exported_by_ref;
using test::geometry_of;
using test::host_sets;
using test::Random;
using test::Sums;
using test::Tensor;
using test::Twin;
using test::View;
using test::with_sketch;

constexpr int32_t kHeads = 2;
constexpr int32_t kSequences = 3;

template <size_t kCount, class Value>
Value pick(Random& random, const Value (&choices)[kCount]) {
  return choices[random.bits() % kCount];
}

pkv_geometry any_geometry(Random& random) {
  const int32_t dims[] = {8, 16, 24, 32, 40, 64, 80, 96, 128, 136, 192, 256, 320, 512, 576};
  const int32_t d = pick(random, dims);
  const int32_t dv = random.bits() % 4 == 0 ? 0 : pick(random, dims);
  pkv_geometry geometry =
      geometry_of(d, dv, pick(random, {PKV_CODEC_POLAR4, PKV_CODEC_SCALAR4, PKV_CODEC_SCALAR5}),
                  pick(random, {PKV_VOTE_TIER, PKV_VOTE_GRADED}), kHeads);
  if ((d & (d - 1)) == 0) geometry.rounds = pick(random, {1, 2});
  if (dv == 0) return geometry;
  geometry.value_norm = pick(random, {0, 1});
  return with_sketch(geometry, pick(random, {0, 2, 4}), pick(random, {1, 3, 16, 100}));
}

// Often none at all: differences that are exactly 0 or far too small need that.
void fill_codec(test::Oracle& oracle, Random& random) {
  if (random.bits() % 3 == 0) return;
  for (float& mu : oracle.center) mu = random.uniform();
  for (float& s : oracle.balance) s = std::exp2(4.0F * random.uniform());
  for (float& mu : oracle.value_center) mu = random.uniform();
}

// [entries, heads, t, dim], each row of a kind of its own.
Tensor any_rows(Random& random, int64_t entries, int64_t t, const std::vector<float>& center) {
  const auto dim = static_cast<int64_t>(center.size()) / kHeads;
  Tensor rows({entries, kHeads, t, dim});
  for (int64_t i = 0; i < entries; ++i) {
    for (int64_t head = 0; head < kHeads; ++head) {
      for (int64_t at = 0; at < t; ++at) {
        test::fill_vector(test::any_kind(random), random, center.data() + head * dim, dim,
                          rows.row(i, head, at));
      }
    }
  }
  return rows;
}

// One append: two of three sequences, each with its own count of at most t tokens.
struct Append {
  Append(Random& random, test::Oracle& oracle, int64_t t, std::vector<int64_t>& lengths)
      : keys(any_rows(random, 2, t, oracle.center)),
        values(oracle.geometry.value_dim == 0 ? Tensor()
                                              : any_rows(random, 2, t, oracle.value_center)),
        keys_view(keys, any_dtype(random), random.bits() % 2 * 5),
        sequences({static_cast<int32_t>(random.bits() % 2) * 2, 1}) {
    if (oracle.geometry.value_dim != 0) {
      values_view = std::make_unique<View>(values, any_dtype(random), random.bits() % 2 * 3);
    }
    counts = {t, random.bits() % 2 == 0 ? t : t / 3};
    for (size_t i = 0; i < counts.size(); ++i) {
      int64_t& length = lengths[static_cast<size_t>(sequences[i])];
      starts.push_back(length);
      length += counts[i];
    }
  }

  static pkv_dtype any_dtype(Random& random) {
    return pick(random, {PKV_DTYPE_F32, PKV_DTYPE_F16, PKV_DTYPE_BF16});
  }

  pkv_encode_args args(test::Oracle& oracle, Sums& sums) {
    return encode_args(oracle, keys_view.tensor(),
                       values_view ? values_view->tensor() : pkv_tensor{}, sequences, starts,
                       counts, sums);
  }

  Tensor keys;
  Tensor values;
  View keys_view;
  std::unique_ptr<View> values_view;
  std::vector<int32_t> sequences;
  std::vector<int64_t> starts;
  std::vector<int64_t> counts;
};

struct World {
  World(const pkv_geometry& geometry, Random& random, const std::vector<int64_t>& tokens)
      : lengths(kSequences, 0), twin(geometry, capacity(tokens), kSequences) {
    fill_codec(twin.ref, random);
    for (const int64_t t : tokens) {
      appends.push_back(std::make_unique<Append>(random, twin.ref, t, lengths));
    }
    for (auto& append : appends) {
      sums.emplace_back(sums.empty() ? Sums(twin.ref) : sums.back());
      pkv_encode_args args = append->args(twin.ref, sums.back());
      args.store = twin.ref.store;
      twin.ref.run(twin.ref.table->encode, args);
    }
  }

  static int64_t capacity(const std::vector<int64_t>& tokens) {
    int64_t sum = 0;
    for (const int64_t t : tokens) sum += t;
    return sum;
  }

  // The same appends on cpu: sums after each, records at the end.
  void check() {
    Sums mine(twin.ref);
    for (size_t i = 0; i < appends.size(); ++i) {
      pkv_encode_args args = appends[i]->args(twin.ref, mine);
      args.store = twin.store;
      twin.run(twin.cpu->encode, args);
      CHECK(mine == sums[i]);
    }
    for (int64_t sequence = 0; sequence < kSequences; ++sequence) {
      const int64_t n = lengths[static_cast<size_t>(sequence)];
      for (int64_t row = sequence * kHeads; row < (sequence + 1) * kHeads; ++row) {
        CHECK(exported_by_cpu(twin, row, 0, n) == exported_by_ref(twin, row, 0, n));
      }
    }
  }

  std::vector<int64_t> lengths;
  Twin twin;
  std::vector<std::unique_ptr<Append>> appends;
  std::vector<Sums> sums;  // of cpu_ref after each append
};

TEST_CASE("cpu encode: records and sums are cpu_ref's for any geometry, key and append") {
  for (uint32_t seed = 1; seed <= 60; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    const pkv_geometry geometry = any_geometry(random);
    CAPTURE(geometry.head_dim);
    CAPTURE(geometry.value_dim);
    CAPTURE(geometry.codec);
    CAPTURE(geometry.vote);
    CAPTURE(geometry.sketch_bits);
    std::vector<int64_t> tokens;
    for (int i = 0; i < 3; ++i) {
      tokens.push_back(pick<9, int64_t>(random, {0, 1, 7, 8, 9, 63, 64, 65, 257}));
    }
    World world(geometry, random, tokens);
    for (const std::string& isa : host_sets()) {
      CAPTURE(isa);
      world.twin.set("isa", isa);
      for (const char* threads : {"1", "2", "8"}) {
        CAPTURE(threads);
        world.twin.set("threads", threads);
        world.check();
      }
    }
  }
}

TEST_CASE("cpu encode: rows of more than one piece") {
  for (const int32_t vote : {PKV_VOTE_TIER, PKV_VOTE_GRADED}) {
    Random random(77);
    pkv_geometry geometry =
        with_sketch(geometry_of(64, 136, PKV_CODEC_SCALAR4, vote, kHeads), 4, 16);
    World world(geometry, random, {1000, 2500, 40});
    for (const char* threads : {"1", "2", "8"}) {
      CAPTURE(threads);
      world.twin.set("threads", threads);
      world.check();
    }
  }
}

TEST_CASE("cpu encode: a key alone gives the record it has among others") {
  Random random(5);
  World world(with_sketch(geometry_of(128, 64, PKV_CODEC_SCALAR4, PKV_VOTE_GRADED, kHeads), 4, 16),
              random, {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1});
  world.check();
}

// Keys along a line through space, on which the first rotated coordinate grows from 0 and the
// others stay what they are.
class Line {
 public:
  Line(Twin& twin, uint32_t seed) : twin_(twin), d_(twin.ref.geometry.head_dim) {
    const cpu_ref::Rotation rotation = cpu_ref::key_rotation(twin.ref.codec());
    std::vector<double> axis(static_cast<size_t>(d_), 0.0);
    axis[0] = 1.0;
    cpu_ref::unrotate(rotation, axis.data());
    std::vector<double> start(static_cast<size_t>(d_));
    Random random(seed);
    for (double& y : start) y = static_cast<double>(random.bell());
    start[0] = 0.0;
    cpu_ref::unrotate(rotation, start.data());
    axis_.assign(axis.begin(), axis.end());
    start_.assign(start.begin(), start.end());
  }

  void key(float t, float* out) const {
    for (size_t j = 0; j < axis_.size(); ++j) out[j] = start_[j] + t * axis_[j];
  }

  // The code of the first rotated coordinate.
  int32_t code(float t) {
    Tensor keys({1, 1, 1, d_});
    key(t, keys.row(0, 0, 0));
    twin_.ref.encode(keys);
    const test::Oracle::Record record = twin_.ref.record(0, 0);
    int32_t code = 0;
    const auto plane_bytes = static_cast<size_t>(d_ / 8);
    for (size_t plane = 0; plane < record.codes.size() / plane_bytes; ++plane) {
      code += (record.codes[plane * plane_bytes] & 1) << plane;
    }
    return code;
  }

  // The first t whose code is above `code`.
  float crossing(int32_t code_before) {
    uint32_t low = 0;
    auto high = std::bit_cast<uint32_t>(100.0F);
    while (high - low > 1) {
      const uint32_t middle = low + (high - low) / 2;
      (code(std::bit_cast<float>(middle)) > code_before ? high : low) = middle;
    }
    return std::bit_cast<float>(high);
  }

 private:
  Twin& twin_;
  int32_t d_;
  std::vector<float> axis_;
  std::vector<float> start_;
};

// A unit that is off by its last place, as by another order of the sum, shows here.
TEST_CASE("cpu encode: magnitudes within some units in the last place of every threshold") {
  constexpr int64_t kKeys = 401;
  uint32_t seed = 0;
  for (const int32_t codec : {PKV_CODEC_POLAR4, PKV_CODEC_SCALAR4, PKV_CODEC_SCALAR5}) {
    const int32_t thresholds = codec == PKV_CODEC_SCALAR5 ? 15 : 7;
    for (const int32_t d : {8, 32, 64, 80, 128, 256}) {
      if (d == 8 && codec != PKV_CODEC_POLAR4) continue;  // not every ratio occurs
      for (int32_t i = 0; i < thresholds; ++i) {
        CAPTURE(codec);
        CAPTURE(d);
        CAPTURE(i);
        Twin twin(geometry_of(d, 0, codec), kKeys);
        Line line(twin, ++seed);
        const auto bits = std::bit_cast<uint32_t>(line.crossing(i));
        Tensor keys({1, 1, kKeys, d});
        for (int64_t key = 0; key < kKeys; ++key) {
          line.key(std::bit_cast<float>(static_cast<uint32_t>(bits + key - kKeys / 2)),
                   keys.row(0, 0, key));
        }
        Sums sums(twin.ref);
        const std::vector<int32_t> sequences = {0};
        const std::vector<int64_t> starts = {0};
        const std::vector<int64_t> counts = {kKeys};
        pkv_encode_args args =
            encode_args(twin.ref, keys.view(), {}, sequences, starts, counts, sums);
        args.store = twin.ref.store;
        twin.ref.run(twin.ref.table->encode, args);
        // Else the threshold was not among them.
        CHECK(twin.ref.record(0, 0).codes != twin.ref.record(0, kKeys - 1).codes);
        args.store = twin.store;
        for (const std::string& isa : host_sets()) {
          CAPTURE(isa);
          twin.set("isa", isa);
          twin.run(twin.cpu->encode, args);
          CHECK(exported_by_cpu(twin, 0, 0, kKeys) == exported_by_ref(twin, 0, 0, kKeys));
        }
      }
    }
  }
}

}  // namespace
}  // namespace pkv
