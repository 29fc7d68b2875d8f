// Lane groups: the same results in every half and quarter of a hardware group of 32 or 64 lanes.
#include "backends/gpu/gpu_lanes.cuh"

#include <algorithm>
#include <vector>

#include "doctest/doctest.h"
#include "tests/unit/gpu/run_kernel.h"

namespace pkv::gpu_host {
namespace {

// f() of each of 128 threads.
template <class F>
std::vector<decltype(std::declval<F>()())> results_of(const gpu_exec::Options& machine,
                                                      const F& f) {
  std::vector<decltype(f())> results(128);
  CHECK(run_kernel(machine, {.threads = 128},
                   [&] { results[static_cast<size_t>(thread_index())] = f(); }) == "");
  return results;
}

template <int kSize>
void check_group() {
  using Group = LaneGroup<kSize>;
  CAPTURE(kSize);
  for (const auto& machine : kMachines) {
    const auto places = results_of(machine, [] { return Group::index() * 100 + Group::rank(); });
    const auto values = results_of(machine, [] {
      const int t = thread_index();
      return Group::shuffle(t * 3, (Group::rank() + 1) % kSize);
    });
    const auto wide = results_of(
        machine, [] { return Group::shuffle_xor(1.5 + thread_index() * 0x1p-30, kSize / 2); });
    const auto ballots = results_of(machine, [] { return Group::ballot(thread_index() % 3 == 0); });
    const auto ranks =
        results_of(machine, [] { return Group::rank_in(Group::ballot(thread_index() % 3 == 0)); });
    const auto sums = results_of(machine, [] { return Group::sum(thread_index()); });
    const auto least = results_of(machine, [] { return Group::min(200 - thread_index()); });
    const auto most = results_of(machine, [] { return Group::max(thread_index() ^ 5); });
    const auto before = results_of(machine, [] { return Group::sum_before(thread_index()); });
    const auto any = results_of(machine, [] { return int{Group::any(thread_index() == 37)}; });
    const auto all = results_of(machine, [] { return int{Group::all(thread_index() < 37)}; });
    for (int t = 0; t < 128; ++t) {
      const auto i = static_cast<size_t>(t);
      const int first = t / kSize * kSize;
      const int rank = t % kSize;
      CAPTURE(t);
      CHECK(places[i] == first / kSize * 100 + rank);
      CHECK(values[i] == (first + (rank + 1) % kSize) * 3);
      CHECK(wide[i] == 1.5 + (first + (rank ^ (kSize / 2))) * 0x1p-30);
      uint32_t bits = 0;
      int count = 0;
      int sum = 0;
      int sum_before = 0;
      int smallest = 1000;
      int largest = -1;
      for (int r = 0; r < kSize; ++r) {
        const int other = first + r;
        if (other % 3 == 0) bits |= 1U << r;
        if (other % 3 == 0 && r < rank) ++count;
        sum += other;
        if (r < rank) sum_before += other;
        smallest = std::min(smallest, 200 - other);
        largest = std::max(largest, other ^ 5);
      }
      CHECK(ballots[i] == bits);
      CHECK(ranks[i] == count);
      CHECK(sums[i] == sum);
      CHECK(before[i] == sum_before);
      CHECK(least[i] == smallest);
      CHECK(most[i] == largest);
      CHECK(any[i] == (first <= 37 && 37 < first + kSize ? 1 : 0));
      CHECK(all[i] == (first + kSize <= 37 ? 1 : 0));
    }
  }
}

TEST_CASE("lanes: groups of every size") {
  check_group<1>();
  check_group<2>();
  check_group<4>();
  check_group<8>();
  check_group<16>();
  check_group<32>();
}

TEST_CASE("lanes: groups go their own ways") {
  for (const auto& machine : kMachines) {
    const auto sums = results_of(machine, [] {
      int sum = 0;
      for (int i = 0; i <= LaneGroup<32>::index(); ++i) sum += LaneGroup<32>::sum(1);
      return sum;
    });
    for (int t = 0; t < 128; ++t) CHECK(sums[static_cast<size_t>(t)] == 32 * (t / 32 + 1));
  }
}

TEST_CASE("lanes: 64 ones of 64 threads are 64, on groups of 32 and of 64 lanes") {
  for (const auto& machine : kMachines) {
    int32_t sum = 0;
    CHECK(run_kernel(machine, {.threads = 64}, [&] {
            const int32_t ones = LaneGroup<32>::sum(1);
            if (LaneGroup<32>::rank() == 0) atomic_add(&sum, ones);
          }) == "");
    CHECK(sum == 64);
  }
}

TEST_CASE("lanes: a ballot of the hardware has bits of others, which a group does not see") {
  bool has_noise = false;
  for (const auto& machine : kMachines) {
    const auto bits =
        results_of(machine, [] { return gpu_exec::ballot(8, true, gpu_exec::Site::here()); });
    for (int t = 0; t < 128; ++t) {
      const uint64_t members = uint64_t{0xff} << (t % machine.lanes / 8 * 8);
      CHECK((bits[static_cast<size_t>(t)] & members) == members);
      has_noise = has_noise || bits[static_cast<size_t>(t)] != members;
    }
  }
  CHECK(has_noise);
}

TEST_CASE("lanes: a group's sync orders shared memory") {
  for (const auto& machine : kMachines) {
    const auto seen = results_of(machine, [] {
      struct Shared {
        int value[128];
      };
      PKV_SHARED(Shared, shared);
      const int t = thread_index();
      shared.value[t] = t;
      LaneGroup<32>::sync();
      return shared.value[t ^ 31];
    });
    for (int t = 0; t < 128; ++t) CHECK(seen[static_cast<size_t>(t)] == (t ^ 31));
  }
}

TEST_CASE("lanes: atomics") {
  for (const auto& machine : kMachines) {
    int32_t sum = 0;
    int64_t wide = int64_t{1} << 40;
    int32_t most = -1;
    uint32_t least = 1000;
    uint32_t bits = 0;
    std::vector<int> before(128);
    CHECK(run_kernel(machine, {.threads = 128}, [&] {
            const int t = thread_index();
            ++before[static_cast<size_t>(atomic_add(&sum, 1))];
            atomic_add(&wide, int64_t{t});
            atomic_max(&most, t);
            atomic_min(&least, static_cast<uint32_t>(t) + 7);
            atomic_or(&bits, 1U << (t % 20));
          }) == "");
    CHECK(sum == 128);
    CHECK(before == std::vector<int>(128, 1));
    CHECK(wide == (int64_t{1} << 40) + 127 * 64);
    CHECK(most == 127);
    CHECK(least == 7);
    CHECK(bits == 0xfffffU);
  }
}

}  // namespace
}  // namespace pkv::gpu_host
