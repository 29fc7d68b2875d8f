// What a case gets: the two places, its seed, and the ways to run and judge a stage.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "tests/conformance/compare.h"
#include "tests/conformance/failure.h"
#include "tests/conformance/place.h"
#include "tests/conformance/random.h"

namespace pkv::conformance {

class Bench {
 public:
  Bench(const Place& reference, const Place& subject, uint64_t seed)
      : reference_(reference), subject_(subject), seed_(seed) {}

  const Place& reference() const { return reference_; }
  const Place& subject() const { return subject_; }

  // Of one case: depends on the seed of the run and on `name` alone.
  Random random(std::string_view name) const { return Random(hash_of(name) ^ seed_); }

  // The reference's result of `run(place, fill)`.
  template <class Run>
  auto expected(Run run) const {
    return run(reference_, kFills[0]);
  }
  // The backend's. Runs it twice, memory holding something else the second time; Failure unless
  // both results have the same bits.
  template <class Run>
  auto result(Run run) const {
    fill_fresh_memory(kFills[0]);
    auto first = run(subject_, kFills[0]);
    fill_fresh_memory(kFills[1]);
    const auto second = run(subject_, kFills[1]);
    expect_same(first, second, "a second run");
    return first;
  }

 private:
  const Place& reference_;
  const Place& subject_;
  uint64_t seed_;
};

// Skip where each of a case's many blocks takes a millisecond: on the executor of kernels.
inline void skip_many_blocks(const Bench& bench, int32_t batch) {
  if (batch < 10000 || bench.subject().backend() != "gpu-host") return;
  throw Skip("so many rows take gpu-host minutes");
}

// How a case is judged (docs/numerics.md, section 1).
enum class Verdict { kExact, kTolerance };

struct Case {
  std::string name;  // stage/..
  Verdict verdict;
  std::function<void(const Bench&)> run;

  std::string stage() const { return name.substr(0, name.find('/')); }
  bool is_golden() const { return stage() == "golden"; }
};

using Cases = std::vector<Case>;

void add_fit_cases(Cases& cases);
void add_encode_cases(Cases& cases);
void add_store_cases(Cases& cases);
void add_vote_cases(Cases& cases);
void add_select_cases(Cases& cases);
void add_rerank_cases(Cases& cases);
void add_fetch_cases(Cases& cases);
void add_attend_cases(Cases& cases);
void add_step_cases(Cases& cases);
void add_cache_cases(Cases& cases);

}  // namespace pkv::conformance
