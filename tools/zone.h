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

// The zone begins behind `sink` tokens, is a multiple of `interval` long, and ends at least `local`
// tokens before the query's own end.
inline Regions regions_at(int64_t position, int64_t sink, int64_t local, int64_t interval = 1) {
  const int64_t tokens = position + 1;
  const int64_t sink_end = std::min(sink, tokens);
  const int64_t behind = std::max<int64_t>(0, tokens - local - sink_end);
  return {sink_end, sink_end + behind - behind % interval, tokens};
}

}  // namespace pkv::cli
