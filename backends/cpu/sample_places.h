// Which of a row's samples are candidates. docs/algorithm.md, sections 6.4 and 8.
#pragma once

#include <cstdint>

#include "core/format/samples.h"

namespace pkv::cpu {

// floor(i * steps / count) for i = 0, 1, .., without a division for each.
class SampleSteps {
 public:
  explicit SampleSteps(const format::Samples& samples)
      : count_(samples.count),
        whole_(count_ == 0 ? 0 : samples.steps / count_),
        part_(count_ == 0 ? 0 : samples.steps % count_) {}

  int64_t next() {
    const int64_t result = step_;
    step_ += whole_;
    rest_ += part_;
    if (rest_ >= count_) {
      rest_ -= count_;
      ++step_;
    }
    return result;
  }

 private:
  int64_t count_;
  int64_t whole_;
  int64_t part_;
  int64_t step_ = 0;
  int64_t rest_ = 0;
};

// places[i] = where sample i stands among the candidates (ascending), -1 if it is none.
void find_sample_places(const format::Samples& samples, const int32_t* candidates, int32_t count,
                        int32_t* places);

}  // namespace pkv::cpu
