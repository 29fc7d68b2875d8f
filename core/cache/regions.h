// Which token is in which region, and when a codec is fitted: functions of a length alone.
// docs/algorithm.md, section 9.
#pragma once

#include <algorithm>
#include <cstdint>

namespace pkv {

struct RegionRules {
  int64_t sink;
  int64_t local;
  int64_t interval;
  int64_t dense_below;
  bool refits;
};

inline constexpr int64_t kNever = INT64_MAX;

// Tokens of the zone. It begins at position `sink`.
constexpr int64_t zone_of(const RegionRules& rules, int64_t tokens) {
  const int64_t behind = std::max<int64_t>(0, tokens - rules.sink - rules.local);
  return behind - behind % rules.interval;
}

// The fewest tokens with which the zone is this long; `zone` > 0.
constexpr int64_t tokens_of_zone(const RegionRules& rules, int64_t zone) {
  return rules.sink + zone + rules.local;
}

constexpr int64_t up_to_interval(const RegionRules& rules, int64_t zone) {
  return (zone + rules.interval - 1) / rules.interval * rules.interval;
}

// The zone's length at the first fit, and at the one after a fit at `last`: a sixteenth more, from
// kLongZone on an eighth.
inline constexpr int64_t kLongZone = 16384;
constexpr int64_t first_fit(const RegionRules& rules) {
  return up_to_interval(rules, rules.dense_below);
}
constexpr int64_t next_fit(const RegionRules& rules, int64_t last) {
  const int64_t part = last < kLongZone ? 16 : 8;
  return rules.refits ? up_to_interval(rules, last + (last + part - 1) / part) : kNever;
}

}  // namespace pkv
