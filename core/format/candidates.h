// How many candidates the vote keeps. docs/algorithm.md, section 5; the schedules, section 1.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/format/config.h"
#include "pariskv/pariskv_backend.h"

namespace pkv::format {

// `ppm` of n keys for all n below `below`.
struct ScheduleStep {
  int64_t below;
  int64_t ppm;
};

// Decision 16.
inline constexpr ScheduleStep kDefaultSchedule[4] = {
    {16384, 100000}, {32768, 50000}, {131072, 20000}, {INT64_MAX, 10000}};
inline constexpr ScheduleStep kPaperSchedule[2] = {{131072, 100000}, {INT64_MAX, 50000}};

// The share that applies to n keys. Rule: pkv_candidate_rule, or anything with its fields.
template <class Rule>
PKV_HD constexpr int64_t candidate_ppm(const Rule& rule, int64_t n) {
  int step = 0;
  while (step < rule.steps - 1 && n >= rule.below[step]) ++step;
  return rule.ppm[step];
}

// C = min(n, max(k, ceil(n * ppm / 10^6))), for 0 <= n < 2^31.
template <class Rule>
PKV_HD constexpr int64_t candidate_count(const Rule& rule, int64_t n) {
  constexpr int64_t kMillion = 1000000;
  const int64_t share = (n * candidate_ppm(rule, n) + (kMillion - 1)) / kMillion;  // below 2^51
  const int64_t wanted = share > rule.k ? share : rule.k;
  return wanted < n ? wanted : n;
}

// The largest C of any n up to max_length: C grows with n only between two steps of the schedule,
// so it is largest at one of the ends.
PKV_HD constexpr int64_t largest_candidate_count(const pkv_candidate_rule& rule,
                                                 int64_t max_length) {
  int64_t largest = candidate_count(rule, max_length);
  for (int32_t step = 0; step < rule.steps; ++step) {
    if (rule.below[step] > max_length || rule.below[step] < 1) continue;
    const int64_t count = candidate_count(rule, rule.below[step] - 1);
    if (count > largest) largest = count;
  }
  return largest;
}

// A share in (0, 1] as ppm: rint(share * 10^6), ties to even, at least 1.
PKV_HD constexpr int64_t share_ppm(double share) {
  const double exact = share * 1e6;
  auto ppm = static_cast<int64_t>(exact);
  const double rest = exact - static_cast<double>(ppm);
  if (rest > 0.5 || (rest == 0.5 && ppm % 2 != 0)) ++ppm;
  return ppm < 1 ? 1 : ppm;
}

template <std::size_t kSteps>
constexpr pkv_candidate_rule candidate_rule(const ScheduleStep (&schedule)[kSteps], int32_t k) {
  static_assert(kSteps >= 1 && kSteps <= PKV_MAX_SCHEDULE);
  pkv_candidate_rule rule{};
  for (std::size_t i = 0; i < kSteps; ++i) {
    rule.below[i] = schedule[i].below;
    rule.ppm[i] = schedule[i].ppm;
  }
  rule.k = k;
  rule.steps = static_cast<int32_t>(kSteps);
  return rule;
}

// The rule of one share for every n.
constexpr pkv_candidate_rule candidate_rule(int64_t ppm, int32_t k) {
  const ScheduleStep schedule[1] = {{INT64_MAX, ppm}};
  return candidate_rule(schedule, k);
}

}  // namespace pkv::format
