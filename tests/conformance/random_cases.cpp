#include "tests/conformance/random_cases.h"

#include <algorithm>
#include <array>

#include "fmt/core.h"
#include "tests/conformance/cases.h"

namespace pkv::conformance {
namespace {

// Coordinates of all keys of a case: some milliseconds of the reference.
constexpr int64_t kMostNumbers = 300000;

int64_t random_length(Random& random, int64_t most) {
  const int64_t most_here = std::min(most, one_of<int64_t>(random, {20, 80, 300, 300, 1200, 9000}));
  return random.below(most_here + 1);
}

int32_t random_dim(Random& random) {
  if (chance(random, 3)) return static_cast<int32_t>(8 * (1 + random.below(72)));
  return kDims[random.below(static_cast<int64_t>(std::size(kDims)))];
}

void choose_sketch(Random& random, const RandomLimits& limits, Setup& setup) {
  if (!limits.needs_sketch && chance(random, 2)) return;
  setup.sketch_bits = one_of(random, {2, 4});
  setup.sketch_stride = one_of(random, {1, 1, 16, 3, 5});
}

void choose_values(Random& random, const RandomLimits& limits, Setup& setup) {
  if (chance(random, 3)) setup.dv = random_dim(random);
  if (chance(random, 6)) {
    setup.v_source = PKV_V_SOURCE_K_PREFIX;
    setup.dv = static_cast<int32_t>(8 * (1 + random.below(setup.d / 8)));
  } else if (!limits.needs_values && !limits.needs_sketch && chance(random, 8)) {
    setup.v_source = PKV_V_SOURCE_NONE;
    setup.dv = 0;
    return;
  }
  choose_sketch(random, limits, setup);
  if (chance(random, 5)) setup.value_norm = 1;
}

void choose_numbers(Random& random, const RandomLimits& limits, Setup& setup) {
  if (!chance(random, 3)) return;
  setup.keys = one_of(random, {"duplicates", "equal", "integers", "mixed", "one_nan", "all_bad"});
  setup.queries = one_of(random, {"normal", "zero", "integers", "opposite", "one_nan", "one_inf"});
  if (!limits.has_extremes) return;
  setup.keys = one_of(random, {setup.keys, "channels", "aligned", "denormal", "huge", "one_inf"});
  setup.queries = one_of(random, {setup.queries, "minus_zero", "denormal", "huge", "sum_overflow"});
}

using Add = void (*)(Cases&, Random&);
constexpr std::array<Add, 10> kStages = {
    add_random_encode, add_random_vote,   add_random_select, add_random_rerank, add_random_rerank,
    add_random_fetch,  add_random_attend, add_random_attend, add_random_step,   add_random_step};

}  // namespace

bool chance(Random& random, int64_t one_in) { return random.below(one_in) == 0; }

Setup random_setup(Random& random, const RandomLimits& limits) {
  Setup setup;
  setup.d = random_dim(random);
  setup.h = static_cast<int32_t>(1 + random.below(3));
  setup.G = static_cast<int32_t>(1 + random.below(chance(random, 12) ? 128 : 9));
  setup.b = static_cast<int32_t>(1 + random.below(chance(random, 8) ? 17 : 4));
  setup.n =
      random_length(random, std::max<int64_t>(1, kMostNumbers / (setup.d * setup.h * setup.b)));
  setup.codec =
      one_of(random, {PKV_CODEC_SCALAR4, PKV_CODEC_SCALAR4, PKV_CODEC_SCALAR5, PKV_CODEC_POLAR4});
  setup.vote = chance(random, 3) ? PKV_VOTE_TIER : PKV_VOTE_GRADED;
  if ((setup.d & (setup.d - 1)) == 0 && chance(random, 3)) setup.rounds = 2;
  choose_values(random, limits, setup);
  setup.dtype = kFloats[random.below(3)];
  setup.query_dtype = chance(random, 2) ? setup.dtype : kFloats[random.below(3)];
  setup.layout = one_of(random, {Layout::kStrided, Layout::kDense, Layout::kTokenMajor,
                                 Layout::kPadded, Layout::kReversed, Layout::kOffset});
  choose_numbers(random, limits, setup);
  if (!limits.has_stores) return setup;
  if (chance(random, 3)) setup.sets = static_cast<int32_t>(2 + random.below(2));
  if (chance(random, 4)) setup.query_tokens = static_cast<int32_t>(2 + random.below(2));
  const bool fits_pages = setup.sketch_stride == 1 || setup.sketch_stride == 16;
  if (fits_pages && chance(random, 3)) setup.page = one_of<int64_t>(random, {64, 128, 256});
  return setup;
}

int32_t random_k(Random& random, int64_t n) {
  const int64_t most = one_of<int64_t>(random, {8, 40, 130, n + 3});
  return static_cast<int32_t>(random.below(most + 1));
}

int64_t random_ppm(Random& random) {
  return one_of<int64_t>(random, {1, 20000, 100000, 300000, 700000, 1000000});
}

void add_random_cases(Cases& cases, uint64_t seed, int64_t count) {
  for (int64_t i = 1; i <= count; ++i) {
    const std::string prefix = fmt::format("random/{}/", i);
    Random random(hash_of(prefix) ^ seed);
    kStages[static_cast<size_t>(random.below(static_cast<int64_t>(kStages.size())))](cases, random);
    cases.back().name = prefix + cases.back().name;
  }
}

}  // namespace pkv::conformance
