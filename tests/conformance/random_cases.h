// Cases of shapes that nobody wrote down: what a case is follows from the seed and its number.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>

#include "tests/conformance/bench.h"
#include "tests/conformance/world.h"

namespace pkv::conformance {

// random/1/.. to random/<count>/..
void add_random_cases(Cases& cases, uint64_t seed, int64_t count);

template <class T>
T one_of(Random& random, std::initializer_list<T> choices) {
  return choices.begin()[random.below(static_cast<int64_t>(choices.size()))];
}
bool chance(Random& random, int64_t one_in);

// What random_setup may choose.
struct RandomLimits {
  bool has_stores = true;    // stores of the case itself: pages, codec sets, several query tokens
  bool has_extremes = true;  // numbers at the ends of the range
  bool needs_values = false;
  bool needs_sketch = false;
};
Setup random_setup(Random& random, const RandomLimits& limits);
// Around and beyond the number of keys of a setup: hits of a row.
int32_t random_k(Random& random, int64_t n);
int64_t random_ppm(Random& random);

// One case of a stage, beside its tables.
void add_random_encode(Cases& cases, Random& random);
void add_random_vote(Cases& cases, Random& random);
void add_random_select(Cases& cases, Random& random);
void add_random_rerank(Cases& cases, Random& random);
void add_random_fetch(Cases& cases, Random& random);
void add_random_attend(Cases& cases, Random& random);
void add_random_step(Cases& cases, Random& random);

}  // namespace pkv::conformance
