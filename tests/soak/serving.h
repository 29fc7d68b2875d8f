// A server of conversations over a cache, step by step: arrivals that rise and fall, prompts in
// pieces, ragged batches, forks of a common prompt, drafts that are rolled back, answers tried
// again, conversations that rest, are moved to files, and come back. Everything follows from the
// seed. After each step the cache is held against the naive model.
#pragma once

#include <filesystem>
#include <list>
#include <string>
#include <vector>

#include "tests/conformance/random.h"
#include "tests/model/judge.h"

namespace pkv::soak {

struct Counts {
  int64_t steps = 0;      // of decoding, all layers
  int64_t decoded = 0;    // tokens
  int64_t prefilled = 0;  // tokens
  int64_t calls = 0;      // of the C API that change the cache
  int64_t arrivals = 0;
  int64_t forks = 0;
  int64_t rollbacks = 0;
  int64_t retries = 0;
  int64_t refits = 0;
  int64_t saves = 0;  // then removed: evictions
  int64_t loads = 0;
  int64_t out_of_memory = 0;  // calls refused for want of memory, taken back and made again
  int64_t removed = 0;
  int64_t compared = 0;  // comparisons with the model beyond lengths and regions
};

cache_model::Shape serving_shape();

class Serving {
 public:
  Serving(cache_model::World& world, std::filesystem::path folder, uint64_t seed, int64_t deep);
  // Arrivals come with `rate` a step. Throws cache_model::Mismatch. Microseconds that the decoding
  // of this step took in the library; negative: nothing was decoded.
  double step(double rate);
  // Everybody leaves; nothing may be left in the cache.
  void finish();
  const Counts& counts() const { return counts_; }

 private:
  enum class State { kWaiting, kPrefill, kDecode, kResting, kFiled };
  struct Talk {
    int64_t number = 0;
    State state = State::kWaiting;
    State then = State::kPrefill;  // of one in a file
    int32_t slot = -1;
    int64_t prompt_left = 0, answer_left = 0, answer_begin = 0;
    int64_t wake = 0;
    int turns = 0;
    bool drafts = false;
    std::vector<cache_model::NaiveLayer> kept;  // of one in a file
  };

  int64_t between(int64_t low, int64_t high) { return low + random_.below(high - low + 1); }
  bool one_in(int64_t n) { return random_.below(n) == 0; }
  std::vector<uint64_t> fresh(int64_t count);
  int64_t tokens_of(const Talk& talk) const { return naive_.shortest(talk.slot); }
  std::string path_of(const Talk& talk) const;

  void arrive(double rate);
  void admit(Talk& talk);
  void wake();
  void prefill();
  double decode();
  void roll_back(Talk& talk, int64_t drafted);
  void end_turn(Talk& talk);
  bool make_room();
  void move_to_file(Talk& talk, State then);
  void move_back(Talk& talk);
  void remove(Talk& talk);
  // The call of each layer; if one is refused for want of memory, all is as before.
  template <class Call>
  bool all_layers(const cache_model::Parts& parts, Call call);
  pkv_status timed_decode(int32_t layer, const cache_model::Parts& parts, double& microseconds);
  void look();

  cache_model::World& world_;
  cache_model::Naive naive_;
  std::filesystem::path folder_;
  conformance::Random random_;
  int64_t deep_;
  std::list<Talk> talks_;
  int32_t common_ = -1;  // the sequence of the common prompt
  int64_t now_ = 0;
  uint64_t next_token_ = 1;
  Counts counts_;
};

}  // namespace pkv::soak
