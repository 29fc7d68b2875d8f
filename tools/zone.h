// Which tokens a query attends to in full, and which are left to the index.
#pragma once

#include <algorithm>
#include <cstdint>

namespace pkv::cli {

// Tokens 0..position of a query: the sink, the zone, the local window.
struct Regions {
  int64_t sink_end;  // sink: [0, sink_end)
  int64_t zone_end;  // zone: [sink_end, zone_end); local: [zone_end, tokens)
  int64_t tokens;    // that the query sees

  int64_t zone_tokens() const { return zone_end - sink_end; }
};

// The zone begins behind `sink` tokens and ends `local` tokens before the query's own end.
inline Regions regions_at(int64_t position, int64_t sink, int64_t local) {
  const int64_t tokens = position + 1;
  const int64_t sink_end = std::min(sink, tokens);
  return {sink_end, std::max(sink_end, tokens - local), tokens};
}

}  // namespace pkv::cli
