#include "tools/judge.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace pkv::cli {

double share_found(std::span<const int32_t> wanted, std::span<const int32_t> found) {
  std::vector<int32_t> sorted(wanted.begin(), wanted.end());
  std::sort(sorted.begin(), sorted.end());
  const auto count = std::count_if(found.begin(), found.end(), [&](int32_t position) {
    return std::binary_search(sorted.begin(), sorted.end(), position);
  });
  return static_cast<double>(count) / static_cast<double>(wanted.size());
}

double relative_error(std::span<const double> wanted, std::span<const float> got) {
  double difference = 0;
  double size = 0;
  for (size_t j = 0; j < wanted.size(); ++j) {
    const double off = static_cast<double>(got[j]) - wanted[j];
    difference += off * off;
    size += wanted[j] * wanted[j];
  }
  return std::sqrt(size > 0 ? difference / size : difference);
}

void Judge::add(const Trace& trace, const Exact& exact, const Answer& answer) {
  for (int64_t head = 0; head < trace.kv_heads(); ++head) add_recall(exact, answer, head);
  for (int64_t head = 0; head < trace.query_heads(); ++head) {
    add_query_head(trace, exact, answer, head);
  }
  microseconds_.push_back(answer.microseconds);
}

void Judge::add_recall(const Exact& exact, const Answer& answer, int64_t kv_head) {
  const auto head = static_cast<size_t>(kv_head);
  const int64_t zone = exact.regions.zone_tokens();
  if (zone > 0) {
    candidate_share_.add(answer.takes_all_candidates
                             ? 1.0
                             : static_cast<double>(answer.candidates[head].size()) /
                                   static_cast<double>(zone));
  }
  if (exact.wanted == 0) return;
  const auto wanted = exact.best_of(kv_head);
  candidate_recall_.add(answer.takes_all_candidates ? 1.0
                                                    : share_found(wanted, answer.candidates[head]));
  recall_.add(answer.takes_all_hits ? 1.0 : share_found(wanted, answer.hits[head]));
}

void Judge::add_query_head(const Trace& trace, const Exact& exact, const Answer& answer,
                           int64_t query_head) {
  const Regions& regions = exact.regions;
  const auto weights = exact.weights_of(query_head);
  const auto kv_head = static_cast<size_t>(query_head / trace.group());
  double mass = 1.0;
  if (!answer.takes_all_hits) {
    mass = std::accumulate(weights.begin(), weights.begin() + regions.sink_end, 0.0);
    mass = std::accumulate(weights.begin() + regions.zone_end, weights.end(), mass);
    for (const int32_t position : answer.hits[kv_head]) {
      mass += weights[static_cast<size_t>(regions.sink_end + position)];
    }
  }
  mass_.add(std::min(mass, 1.0));  // a sum of all weights may round to above 1

  const auto first = static_cast<size_t>(query_head * trace.value_dim());
  const auto count = static_cast<size_t>(trace.value_dim());
  error_.add(relative_error(std::span(exact.output).subspan(first, count),
                            std::span(answer.output).subspan(first, count)));
}

double Judge::microseconds() const {
  if (microseconds_.empty()) return 0;
  std::vector<double> sorted = microseconds_;
  std::sort(sorted.begin(), sorted.end());
  const size_t middle = sorted.size() / 2;
  if (sorted.size() % 2 == 1) return sorted[middle];
  return (sorted[middle - 1] + sorted[middle]) / 2;
}

}  // namespace pkv::cli
