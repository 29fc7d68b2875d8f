// What each query token of a step sees of its sequence, as arrays that the stages read: made on the
// host, or by the device from its own state of the sequences (pariskv_backend.h, advance).
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "core/cache/layer.h"
#include "core/cache/shape.h"
#include "core/cache/step_call.h"
#include "core/runtime/stream.h"

namespace pkv {

// Arrays [n] of a call, in one piece that the device reads.
struct StepNumbers {
  StepNumbers(std::byte* memory, int64_t n) {
    auto* wide = reinterpret_cast<int64_t*>(memory);
    for (int64_t** array : {&lengths, &sink_starts, &sink_lengths, &row_starts, &row_lengths}) {
      *array = wide;
      wide += n;
    }
    sequences = reinterpret_cast<int32_t*>(wide);
    sets = sequences + n;
  }
  static int64_t bytes(int64_t n) {
    return n * (5 * int64_t{sizeof(int64_t)} + 2 * int64_t{sizeof(int32_t)});
  }
  int64_t* lengths;
  int64_t* sink_starts;
  int64_t* sink_lengths;
  int64_t* row_starts;
  int64_t* row_lengths;
  int32_t* sequences;
  int32_t* sets;
};

// The longest of each, over the query tokens.
struct StepExtents {
  int64_t keys = 0;
  int64_t sink = 0;
  int64_t rows = 0;
};

StepExtents extents_of(const CacheShape& shape, const Layer& layer, const StepCall& call);
// What a captured step must be ready for: sequences of up to `tokens` tokens, flushed in time.
StepExtents captured_extents(const CacheShape& shape, const Layer& layer, bool is_exact,
                             int64_t tokens);
// `numbers` in host memory.
void write_numbers(const CacheShape& shape, const Layer& layer, const StepCall& call,
                   const StepNumbers& numbers);
// `numbers` in device memory, written there. With call.appends the lengths on the device grow too.
absl::Status enqueue_numbers(Layer& layer, const Stream& stream, const StepCall& call,
                             const StepExtents& extents, const StepNumbers& numbers);

}  // namespace pkv
