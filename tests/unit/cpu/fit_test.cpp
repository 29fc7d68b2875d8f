// Stage fit of backend cpu held against cpu_ref. docs/algorithm.md, section 2.2.
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "tests/unit/cpu/keys.h"
#include "tests/unit/cpu/twin.h"

namespace pkv {
namespace {

using test::geometry_of;
using test::host_sets;
using test::Random;
using test::Tensor;
using test::Twin;
using test::View;

constexpr int32_t kHeads = 2;

struct Sums {
  Sums(int32_t d, int32_t dv)
      : counts(3 * kHeads, -9), numbers(static_cast<size_t>(kHeads * (3 * d + dv)), 7.0) {}

  std::vector<int64_t> counts;  // keys, weights, queries
  std::vector<double> numbers;  // A, B, Q, V
};

bool same_bits(const Sums& a, const Sums& b) {
  return a.counts == b.counts &&
         std::memcmp(a.numbers.data(), b.numbers.data(), a.numbers.size() * sizeof(double)) == 0;
}

struct World {
  World(int32_t dim, int32_t value_dim, int64_t tokens, bool is_weighted, uint32_t seed)
      : d(dim),
        dv(value_dim),
        t(tokens),
        twin(geometry_of(dim, value_dim, PKV_CODEC_SCALAR4, PKV_VOTE_GRADED, kHeads), 1),
        pivot(static_cast<size_t>(kHeads * dim)),
        keys({kHeads, tokens, dim}),
        queries({2 * kHeads, 9, dim}) {
    Random random(seed);
    for (float& c : pivot) c = random.uniform();
    fill(random, keys, d);
    fill(random, queries, d);
    if (dv != 0) {
      values = Tensor({kHeads, t, dv});
      fill(random, values, dv);
    }
    for (int64_t i = 0; is_weighted && i < kHeads * t; ++i) {
      weights.push_back(static_cast<int32_t>(random.bits() % 5));
    }
  }

  void fill(Random& random, Tensor& rows, int64_t dim) {
    const std::vector<float> zeros(static_cast<size_t>(dim), 0.0F);
    for (size_t at = 0; at < rows.data().size(); at += static_cast<size_t>(dim)) {
      test::fill_vector(test::any_kind(random), random, zeros.data(), dim, rows.data().data() + at);
    }
  }

  pkv_fit_args args(const pkv_tensor& k, const pkv_tensor& q, const pkv_tensor& v, int32_t as,
                    Sums& out) {
    pkv_fit_args a = {};
    a.struct_size = sizeof a;
    a.queries_as = as;
    a.geometry = &twin.ref.geometry;
    a.keys = k;
    a.queries = q;
    a.values = v;
    a.weights = weights.empty() ? nullptr : weights.data();
    a.pivot = pivot.data();
    a.key_counts = out.counts.data();
    a.key_weights = a.key_counts + kHeads;
    a.query_counts = a.key_weights + kHeads;
    a.key_sums = out.numbers.data();
    a.key_squares = a.key_sums + kHeads * d;
    a.query_squares = a.key_squares + kHeads * d;
    a.value_sums = dv == 0 ? nullptr : a.query_squares + kHeads * d;
    return a;
  }

  int32_t d;
  int32_t dv;
  int64_t t;
  Twin twin;
  std::vector<float> pivot;
  Tensor keys;
  Tensor queries;
  Tensor values;
  std::vector<int32_t> weights;
};

// One run of keys: the sums are made in cpu_ref's order, so they have its bits.
TEST_CASE("cpu fit: up to 1,024 keys, the bits of cpu_ref") {
  uint32_t seed = 0;
  for (const int64_t t : {0, 1, 7, 8, 9, 63, 64, 65, 257, 1024}) {
    for (const pkv_dtype dtype : {PKV_DTYPE_F32, PKV_DTYPE_F16, PKV_DTYPE_BF16}) {
      ++seed;
      CAPTURE(seed);
      CAPTURE(t);
      const int32_t dims[] = {8, 24, 64, 136, 576};
      World world(dims[seed % 5], seed % 3 == 0 ? 0 : dims[seed % 4], t, seed % 2 == 0, seed);
      View keys(world.keys, dtype, seed % 2);
      View queries(world.queries, dtype, 0);
      Tensor none;
      pkv_tensor values_view = {};
      std::unique_ptr<View> values;
      if (world.dv != 0) {
        values = std::make_unique<View>(world.values, dtype, 3);
        values_view = values->tensor();
      }
      for (const int32_t as : {PKV_FIT_QUERIES_HEADS, PKV_FIT_QUERIES_SUM}) {
        Sums expected(world.d, world.dv);
        world.twin.ref.run(world.twin.ref.table->fit,
                           world.args(keys.tensor(), queries.tensor(), values_view, as, expected));
        for (const std::string& isa : host_sets()) {
          CAPTURE(isa);
          world.twin.set("isa", isa);
          Sums sums(world.d, world.dv);
          world.twin.run(world.twin.cpu->fit,
                         world.args(keys.tensor(), queries.tensor(), values_view, as, sums));
          CHECK(same_bits(sums, expected));
        }
      }
    }
  }
}

TEST_CASE("cpu fit: many runs of keys, within the bound, and equal on any number of threads") {
  constexpr int64_t kKeys = 70000;
  World world(16, 8, kKeys, true, 11);
  // Bells alone: the bound is relative to the sum of magnitudes.
  world.keys = Tensor::random({kHeads, kKeys, 16}, 12);
  world.values = Tensor::random({kHeads, kKeys, 8}, 13);
  Sums expected(16, 8);
  world.twin.ref.run(world.twin.ref.table->fit,
                     world.args(world.keys.view(), world.queries.view(), world.values.view(),
                                PKV_FIT_QUERIES_HEADS, expected));
  Sums first(16, 8);
  for (const char* threads : {"1", "2", "8"}) {
    CAPTURE(threads);
    world.twin.set("threads", threads);
    Sums sums(16, 8);
    world.twin.run(world.twin.cpu->fit,
                   world.args(world.keys.view(), world.queries.view(), world.values.view(),
                              PKV_FIT_QUERIES_HEADS, sums));
    if (threads[0] == '1') first = sums;
    CHECK(same_bits(sums, first));
    CHECK(sums.counts == expected.counts);
    for (size_t i = 0; i < sums.numbers.size(); ++i) {
      // n * 2^-53 * sum |terms|; a term is at most 4 * (4 + 1)^2.
      CHECK(std::abs(sums.numbers[i] - expected.numbers[i]) <= kKeys * 0x1p-53 * (kKeys * 100.0));
    }
  }
}

}  // namespace
}  // namespace pkv
