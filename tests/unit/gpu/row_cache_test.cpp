// The row cache against a model that keeps lists: what is found, whose lines go, that no line
// serves two rows of a step.
#include "backends/gpu/row_cache.cuh"

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "doctest/doctest.h"
#include "tests/unit/cpu_ref/oracle.h"
#include "tests/unit/gpu/run_kernel.h"

namespace pkv::gpu_host {
namespace {

constexpr int kThreads = 64;

// One (sequence, KV head): sets of positions with the step of their last use.
class Model {
 public:
  explicit Model(int32_t sets) : sets_(static_cast<size_t>(sets)) {}

  // Those of `positions` that are found; the others come in where there is room.
  std::set<int32_t> step(const std::vector<int32_t>& positions, const RowCacheRow& row) {
    ++step_;
    std::set<int32_t> found;
    std::set<int32_t> missing;
    for (const int32_t position : positions) {
      auto& set = sets_[static_cast<size_t>(row.set_of(position))];
      if (set.count(position) != 0) {
        set[position] = step_;
        found.insert(position);
      } else {
        missing.insert(position);
      }
    }
    for (const int32_t position : missing) {
      auto& set = sets_[static_cast<size_t>(row.set_of(position))];
      if (set.size() == kRowCacheWays) {
        const auto oldest = std::min_element(set.begin(), set.end(), [](auto& a, auto& b) {
          return std::pair(a.second, a.first) < std::pair(b.second, b.first);
        });
        if (oldest->second == step_) continue;  // all in use
        set.erase(oldest);
      }
      set[position] = step_;
    }
    return found;
  }

 private:
  std::vector<std::map<int32_t, int64_t>> sets_;
  int64_t step_ = 0;
};

struct Cache {
  Cache(int64_t rows, int32_t lines)
      : data(static_cast<size_t>(rows * lines * 32)),
        tags(static_cast<size_t>(rows * lines)),
        counts(static_cast<size_t>(rows * 4)),
        args{data.data(), tags.data(), counts.data(), 32, lines, 0} {}
  std::vector<std::byte> data;
  std::vector<uint64_t> tags;
  std::vector<uint64_t> counts;
  pkv_row_cache_args args;
};

// One step of one entry, whose rows' places come back.
std::vector<RowPlace> place(const Cache& cache, const std::vector<int32_t>& sequences,
                            const std::vector<int32_t>& positions, int32_t k,
                            const gpu_exec::Options& machine) {
  std::vector<int32_t> counts(sequences.size(), k);
  std::vector<int32_t> places(positions.size(), -7);
  const RowCacheArgs args = {cache.args,
                             sequences.data(),
                             positions.data(),
                             counts.data(),
                             static_cast<int64_t>(sequences.size()),
                             1,
                             k,
                             places.data()};
  CHECK(run_kernel(machine, {.threads = kThreads}, [&] {
          PKV_SHARED(RowCacheShared, shared);
          for (int64_t r = 0; r < args.rows; ++r) place_rows<kThreads>(args, r, shared);
        }).empty());
  std::vector<RowPlace> result;
  for (const int32_t code : places) result.push_back({code});
  return result;
}

void check_steps(int32_t lines, int32_t k, int32_t range, const gpu_exec::Options& machine) {
  CAPTURE(lines);
  CAPTURE(k);
  CAPTURE(machine.lanes);
  CAPTURE(machine.seed);
  Cache cache(3, lines);
  const RowCacheRow row(cache.args, 2);
  Model model(lines / kRowCacheWays);
  std::map<int32_t, int32_t> held;  // of lines: which position was put there
  test::Random random(static_cast<uint32_t>(lines + k));
  uint64_t found_rows = 0;
  for (int step = 0; step < 12; ++step) {
    std::set<int32_t> chosen;
    while (static_cast<int32_t>(chosen.size()) < k) {
      chosen.insert(static_cast<int32_t>(random.bits() % static_cast<uint32_t>(range)));
    }
    std::vector<int32_t> positions(chosen.begin(), chosen.end());
    std::reverse(positions.begin(), positions.end());
    const std::set<int32_t> found = model.step(positions, row);
    found_rows += found.size();
    std::set<int32_t> used;
    const std::vector<RowPlace> places = place(cache, {2}, positions, k, machine);
    for (size_t i = 0; i < places.size(); ++i) {
      CHECK(places[i].is_there() == (found.count(positions[i]) != 0));
      if (!places[i].is_cached()) continue;
      CHECK(places[i].line() < lines);
      CHECK(used.insert(places[i].line()).second);
      if (places[i].is_there()) CHECK(held[places[i].line()] == positions[i]);
    }
    for (size_t i = 0; i < places.size(); ++i) {
      if (places[i].is_cached()) held[places[i].line()] = positions[i];
    }
  }
  CHECK(cache.counts[8] == 12);
  CHECK(cache.counts[9] == 12 * static_cast<uint64_t>(k));
  CHECK(cache.counts[10] == found_rows);
  CHECK(found_rows > 0);
}

TEST_CASE("row cache: finds, keeps and drops what a model does") {
  for (const gpu_exec::Options& machine : kMachines) {
    check_steps(8, 5, 12, machine);   // one set, with room
    check_steps(8, 20, 40, machine);  // more rows than lines
    check_steps(64, 30, 90, machine);
    check_steps(512, 100, 400, machine);
  }
  check_steps(PKV_ROW_CACHE_LINES, 300, 2000, {});
}

TEST_CASE("row cache: of entries that name one sequence the first has it") {
  Cache cache(2, 16);
  const std::vector<int32_t> positions = {3, 9, 3, 9, 3, 9};
  for (int step = 0; step < 2; ++step) {
    const std::vector<RowPlace> places = place(cache, {1, 0, 1}, positions, 2, {});
    for (size_t i = 0; i < 4; ++i) CHECK(places[i].is_there() == (step == 1));
    CHECK(!places[4].is_cached());
    CHECK(!places[5].is_cached());
  }
  CHECK(cache.counts[0] == 2);
  CHECK(cache.counts[4] == 2);
  CHECK(cache.counts[6] == 2);
}

TEST_CASE("row cache: rows whose tags were cleared are not there") {
  Cache cache(1, 16);
  place(cache, {0}, {4, 5}, 2, {});
  std::fill(cache.tags.begin(), cache.tags.end(), 0);
  for (const RowPlace& row : place(cache, {0}, {4, 5}, 2, {})) CHECK(!row.is_there());
}

}  // namespace
}  // namespace pkv::gpu_host
