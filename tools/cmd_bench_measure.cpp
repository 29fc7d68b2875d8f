#include "tools/cmd_bench_measure.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "tools/interrupt.h"

namespace pkv::cli {

double BenchRow::median() const {
  const size_t middle = times.size() / 2;
  if (times.size() % 2 == 1) return times[middle];
  return (times[middle - 1] + times[middle]) / 2;
}

int64_t BenchMeter::group_bytes(const BenchGroup& group) const {
  int64_t bytes = 0;
  for (const BenchStage stage : group.stages) bytes += shape_.bytes(stage);
  return bytes;
}

// A cold round begins with layer 0. If what a round touches fits in the caches, they are emptied
// before, and layer 0 is not timed: it brings code, scratch and threads back, which are no more
// cold in a decode step than the layer before it left them.
absl::Status BenchMeter::measure(const BenchGroup& group, std::vector<BenchRow>& rows) {
  const KeepFreedMemory keep;
  const bool fits = shape_.layers * group_bytes(group) <= shape_.cache_bytes;
  const bool sweeps = !options_.is_warm && fits && shape_.is_cpu && group.calls == 1;
  std::vector<std::vector<double>> times(group.stages.size());
  const auto start = std::chrono::steady_clock::now();
  const std::chrono::duration<double> limit(options_.seconds *
                                            static_cast<double>(group.stages.size()));
  int64_t done = 0;
  for (int64_t i = 0; done < options_.repeat; ++i) {
    CLI_RETURN_IF_ERROR(check_interrupt());
    const int64_t layer = i * group.calls % shape_.layers;
    if (sweeps && layer == 0) reader_.sweep();
    CLI_ASSIGN_OR_RETURN(const std::vector<double> run, group.run(layer));
    if (i == 0 && group.repeats) CLI_RETURN_IF_ERROR(group.repeats().status());
    if (i == 0 || (sweeps && layer == 0)) continue;
    for (size_t stage = 0; stage < times.size(); ++stage) times[stage].push_back(run[stage]);
    ++done;
    work_.advance();
    if (std::chrono::steady_clock::now() - start > limit) break;
  }
  work_.advance(options_.repeat - done);
  double repeats = -1;
  if (group.repeats) {
    CLI_ASSIGN_OR_RETURN(repeats, group.repeats());
  }
  for (size_t i = 0; i < group.stages.size(); ++i) {
    const BenchStage stage = group.stages[i];
    if (stage != BenchStage::kRead && !options_.has(stage)) continue;
    std::sort(times[i].begin(), times[i].end());
    rows.push_back({stage, shape_.n, threads_, shape_.layers,
                    !options_.is_warm && (sweeps || !fits), shape_.candidate_share,
                    shape_.tail_name, shape_.bytes(stage), std::move(times[i]), repeats});
  }
  return absl::OkStatus();
}

}  // namespace pkv::cli
