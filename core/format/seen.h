// Which tokens of its sequence a query token of a cache attends to in full: of the sink, and of
// what lies behind the keys that records stand for. docs/cache.md. On the host, and on devices
// whose lengths are their own.
#pragma once

#include <cstdint>

#include "core/format/config.h"

namespace pkv::format {

// The first position that is seen from `position`; window 0: there is none.
PKV_HD constexpr int64_t first_seen(int64_t window, int64_t position) {
  return window > 0 && position + 1 > window ? position + 1 - window : 0;
}

struct SeenTokens {
  int64_t sink_start;
  int64_t sink_tokens;
  int64_t row_start;  // a position
  int64_t row_tokens;
};

// `keys` of the zone, behind the `sink`, are attended by their records.
PKV_HD constexpr SeenTokens seen_tokens(int64_t sink, int64_t window, int64_t keys,
                                        int64_t position) {
  const int64_t first = first_seen(window, position);
  const int64_t end = position + 1;
  const int64_t sink_start = first < sink ? first : sink;
  const int64_t sink_end = end < sink ? end : sink;
  const int64_t row_start = first < sink + keys ? sink + keys : first;
  return {sink_start, sink_end > sink_start ? sink_end - sink_start : 0, row_start,
          end > row_start ? end - row_start : 0};
}

}  // namespace pkv::format
