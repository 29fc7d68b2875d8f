#include "backends/cpu/sample_places.h"

#include <algorithm>

namespace pkv::cpu {

void find_sample_places(const format::Samples& samples, const int32_t* candidates, int32_t count,
                        int32_t* places) {
  std::fill_n(places, samples.count, -1);
  if (samples.count == 0) return;
  const auto stride = static_cast<int32_t>(samples.stride);
  const bool is_power = (stride & (stride - 1)) == 0;
  // Position p is sample i where p = stride * floor(i * steps / count): i is the smallest one that
  // reaches p / stride, if it does so exactly. Few candidates are multiples of the stride.
  for (int32_t c = 0; c < count; ++c) {
    const int32_t p = candidates[c];
    if ((is_power ? p & (stride - 1) : p % stride) != 0) continue;
    const int64_t step = p / stride;
    const int64_t i = (step * samples.count + samples.steps - 1) / samples.steps;
    if (i < samples.count && samples.position(i) == p) places[i] = c;
  }
}

}  // namespace pkv::cpu
