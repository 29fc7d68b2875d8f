// A cache that keeps every token: the schedule by its own rules, and answers by an index that is
// built anew for each question. Shares no code with core/cache.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "tests/unit/cache/world.h"

namespace pkv::test {

struct NaiveRegions {
  int64_t sink = 0;
  int64_t zone = 0;
  int64_t tail = 0;
  int64_t fit = 0;  // length of the fit in use, 0: none
  int64_t next_fit = 0;
  int64_t fits = 0;
};
// Token by token: counts what an engine that decodes all of them would do.
NaiveRegions simulate(const Shape& shape, int64_t tokens);

class Naive {
 public:
  explicit Naive(const World& world) : world_(world) {}
  ~Naive();
  Naive(const Naive&) = delete;
  Naive& operator=(const Naive&) = delete;

  // What attend says for the last `count` tokens of a sequence of these, all of which came with
  // queries (or none did).
  Answer attend(const std::vector<uint64_t>& ids, int64_t count, bool with_queries = true);
  // Softmax over everything but bad tokens, in double.
  Answer full(const std::vector<uint64_t>& ids, int64_t count) const;
  // The codec that a sequence of these has. NULL: none.
  pkv_codec* codec(const std::vector<uint64_t>& ids, bool with_queries = true);

 private:
  const World& world_;
  std::map<std::vector<uint64_t>, pkv_codec*> codecs_;  // by what they were fitted to
};

// Positions and counts equal, outputs and lse within `tolerance`.
void check_close(const Answer& got, const Answer& wanted, double tolerance);
// Answers of several query tokens in one.
void join(Answer& all, const Answer& more);

}  // namespace pkv::test
