#include "backends/cpu/sample_places.h"

#include <algorithm>

namespace pkv::cpu {

void find_sample_places(const format::Samples& samples, const int32_t* candidates, int32_t count,
                        int32_t* places) {
  std::fill_n(places, samples.count, -1);
  if (samples.count == 0) return;
  const auto stride = static_cast<int32_t>(samples.stride);
  const bool is_power = (stride & (stride - 1)) == 0;
  // Few candidates are multiples of the stride; those are listed first, without a branch.
  constexpr int32_t kRun = 256;
  int32_t listed[kRun];
  for (int32_t begin = 0; begin < count; begin += kRun) {
    int32_t found = 0;
    for (int32_t c = begin; c < std::min(count, begin + kRun); ++c) {
      listed[found] = c;
      const int32_t p = candidates[c];
      found += (is_power ? p & (stride - 1) : p % stride) == 0 ? 1 : 0;
    }
    // Position p is sample i where p = stride * floor(i * steps / count): i is the smallest one
    // that reaches p / stride, if it does so exactly.
    for (int32_t l = 0; l < found; ++l) {
      const int32_t p = candidates[listed[l]];
      const int64_t step = p / stride;
      const int64_t i = (step * samples.count + samples.steps - 1) / samples.steps;
      if (i < samples.count && samples.position(i) == p) places[i] = listed[l];
    }
  }
}

}  // namespace pkv::cpu
