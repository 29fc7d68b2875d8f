// Stage encode of backend cpu, byte for byte that of cpu_ref. docs/algorithm.md, section 3.
#include <doctest/doctest.h>

#include <cmath>
#include <string>
#include <vector>

#include "backends/cpu/quantiser.h"
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

void fill_codec(test::Oracle& oracle, Random& random) {
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

// The larger of |1 - t| / |(1, t)| and (m + t) / |(m times 1, t)|, whichever can be `ratio`, is what
// a key with m ones and one t has as its largest or smallest rotated magnitude, in units of u.
struct Family {
  int32_t ones;
  double sign;

  double ratio(double t) const { return (ones + sign * t) / std::sqrt(ones + t * t); }
};

Family family_of(double ratio) {
  if (ratio < 1.0) return {1, -1.0};
  int32_t ones = 1;
  while (std::sqrt(ones + 1.0) < ratio) ++ones;
  return {ones, 1.0};
}

// t in (0, 1) where the family's ratio is `ratio`.
float crossing(const Family& family, double ratio) {
  double low = 0.0;
  double high = 1.0;
  for (int i = 0; i < 80; ++i) {
    const double middle = 0.5 * (low + high);
    const bool is_before =
        family.sign > 0 ? family.ratio(middle) < ratio : family.ratio(middle) > ratio;
    (is_before ? low : high) = middle;
  }
  return static_cast<float>(low);
}

TEST_CASE("cpu encode: magnitudes within a few units in the last place of every threshold") {
  constexpr int64_t kKeys = 401;
  for (const int32_t codec : {PKV_CODEC_POLAR4, PKV_CODEC_SCALAR4, PKV_CODEC_SCALAR5}) {
    CAPTURE(codec);
    const bool is_polar = codec == PKV_CODEC_POLAR4;
    const cpu::Quantiser& q = is_polar                     ? cpu::kPolar
                              : codec == PKV_CODEC_SCALAR4 ? cpu::kScalar4
                                                           : cpu::kScalar5;
    for (int i = 0; i < q.count; ++i) {
      const double threshold =
          static_cast<double>(q.thresholds[i]) * (is_polar ? std::sqrt(8.0) : 1.0);
      CAPTURE(threshold);
      const Family family = family_of(threshold);
      Twin twin(geometry_of(is_polar ? 8 : 16, 0, codec), kKeys);
      Tensor keys({1, 1, kKeys, is_polar ? 8 : 16});
      float t = crossing(family, threshold);
      for (int64_t key = 0; key < kKeys / 2; ++key) t = std::nextafter(t, 0.0F);
      for (int64_t key = 0; key < kKeys; ++key) {
        float* x = keys.row(0, 0, key);  // its first rotated coordinate is the sum of these
        std::copy_n(twin.ref.signs_1.begin(), family.ones, x);
        x[family.ones] = t * twin.ref.signs_1[static_cast<size_t>(family.ones)];
        t = std::nextafter(t, 1.0F);
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

}  // namespace
}  // namespace pkv
