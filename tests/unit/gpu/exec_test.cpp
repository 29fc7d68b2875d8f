// The executor: what it runs, and what it says against. docs/decisions/0010-gpu-source.md.
#include "backends/gpu/host/exec.h"

#include <algorithm>
#include <atomic>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "backends/gpu/gpu_lanes.cuh"
#include "doctest/doctest.h"
#include "tests/unit/gpu/run_kernel.h"

namespace pkv::gpu_host {
namespace {

bool contains(const std::string& text, const char* part) {
  return text.find(part) != std::string::npos;
}

// The threads in the order in which they reach a place.
std::vector<int> order_of(const gpu_exec::Options& options) {
  std::vector<int> order;
  CHECK(run_kernel(options, {.threads = 128}, [&order] { order.push_back(thread_index()); }) == "");
  return order;
}

TEST_CASE("exec: every thread of every block runs once") {
  for (const auto& machine : kMachines) {
    std::vector<int> runs(6 * 192);
    CHECK(run_kernel(machine, {.threads = 192, .grid = {3, 2}}, [&runs] {
            CHECK(grid_x() == 3);
            CHECK(grid_y() == 2);
            CHECK(block_size() == 192);
            ++runs[(block_y() * 3 + block_x()) * 192 + static_cast<unsigned>(thread_index())];
          }) == "");
    CHECK(runs == std::vector<int>(6 * 192, 1));
  }
}

TEST_CASE("exec: a barrier separates what lies before from what lies behind") {
  for (const auto& machine : kMachines) {
    std::vector<int> seen(128);
    CHECK(run_kernel(machine, {.threads = 128}, [&seen] {
            struct Shared {
              int value[128];
            };
            PKV_SHARED(Shared, shared);
            const int t = thread_index();
            for (int round = 0; round < 5; ++round) {
              shared.value[t] = 1000 * round + t;
              sync_block();
              seen[static_cast<size_t>(t)] += shared.value[127 - t] - 1000 * round;
              sync_block();
            }
          }) == "");
    for (int t = 0; t < 128; ++t) CHECK(seen[static_cast<size_t>(t)] == 5 * (127 - t));
  }
}

TEST_CASE("exec: a missing barrier shows in some order") {
  bool differs = false;
  for (const auto& machine : kMachines) {
    std::vector<int> seen(64);
    CHECK(run_kernel(machine, {}, [&seen] {
            struct Shared {
              int value[64];
            };
            PKV_SHARED(Shared, shared);
            const int t = thread_index();
            shared.value[t] = t;
            seen[static_cast<size_t>(t)] = shared.value[63 - t];
          }) == "");
    for (int t = 0; t < 64; ++t) differs = differs || seen[static_cast<size_t>(t)] != 63 - t;
  }
  CHECK(differs);
}

TEST_CASE("exec: a barrier that not all threads reach ends the launch and is named") {
  for (const auto& machine : kMachines) {
    const std::string text = run_kernel(machine, {.grid = {2, 1}}, [] {
      if (block_x() == 1 && thread_index() == 17) return;
      sync_block();
    });
    CHECK(contains(text, "kernel probe, block (1, 0), lane "));
    CHECK(contains(text, "block barrier at exec_test.cpp:"));
    CHECK(contains(text, "for lane 17, which has ended"));
  }
}

TEST_CASE("exec: lanes at different barriers") {
  for (const auto& machine : kMachines) {
    const std::string text = run_kernel(machine, {}, [] {
      if (thread_index() < 40) {
        sync_block();
      } else {
        sync_block();
      }
    });
    CHECK(contains(text, "while others of the group are at block barrier at exec_test.cpp:"));
  }
}

TEST_CASE("exec: a shuffle that some lanes of the group do not reach") {
  for (const auto& machine : kMachines) {
    const std::string text = run_kernel(machine, {}, [] {
      if (thread_index() != 35) LaneGroup<32>::shuffle(1, 0);
    });
    CHECK(contains(text, "waits at shuffle at exec_test.cpp:"));
    CHECK(contains(text, "for lane 35, which has ended"));
  }
}

TEST_CASE("exec: lanes of a group at different operations") {
  for (const auto& machine : kMachines) {
    const std::string text = run_kernel(machine, {}, [] {
      if (thread_index() % 2 == 0) {
        LaneGroup<8>::ballot(true);
      } else {
        LaneGroup<8>::sync();
      }
    });
    CHECK(contains(text, "while others of the group are at "));
  }
}

TEST_CASE("exec: a machine runs on after a launch that failed") {
  gpu_exec::Machine machine;
  for (int round = 0; round < 3; ++round) {
    CHECK(run_kernel(machine, {32, 3}, {.threads = 256}, [] {
            if (thread_index() != 0) sync_block();
          }) != "");
    int count = 0;
    CHECK(run_kernel(machine, {64, 3}, {.threads = 256}, [&count] {
            sync_block();
            ++count;
          }) == "");
    CHECK(count == 256);
  }
}

TEST_CASE("exec: an exception in a kernel is a text") {
  const std::string text = run_kernel({}, {}, [] {
    if (thread_index() == 3) throw std::runtime_error("no kernel throws");
    sync_block();
  });
  CHECK(contains(text, "lane 3: exception: no kernel throws"));
}

TEST_CASE("exec: the seed decides the order, and the same seed the same order") {
  std::vector<int> ascending(128);
  for (int t = 0; t < 128; ++t) ascending[static_cast<size_t>(t)] = t;
  CHECK(order_of({32, 0}) == ascending);
  CHECK(order_of({32, 5}) != ascending);
  CHECK(order_of({32, 5}) == order_of({32, 5}));
  CHECK(order_of({32, 5}) != order_of({32, 6}));
  std::vector<int> sorted = order_of({32, 5});
  std::sort(sorted.begin(), sorted.end());
  CHECK(sorted == ascending);
}

TEST_CASE("exec: the seed decides the order of blocks") {
  std::vector<unsigned> order;
  CHECK(run_kernel({32, 9}, {.grid = {20, 1}}, [&order] {
          if (thread_index() == 0) order.push_back(block_x());
        }) == "");
  REQUIRE(order.size() == 20);
  CHECK_FALSE(std::is_sorted(order.begin(), order.end()));
  CHECK(std::set<unsigned>(order.begin(), order.end()).size() == 20);
}

TEST_CASE("exec: blocks of a cooperative launch wait for each other") {
  for (const auto& machine : kMachines) {
    std::vector<uint64_t> words(8);
    std::vector<uint64_t> sums(8);
    CHECK(run_kernel(machine, {.grid = {8, 1}, .is_cooperative = true}, [&] {
            if (thread_index() == 0) post_word(&words[block_x()], block_x() + 1);
            uint64_t sum = 0;
            for (uint64_t& word : words) {
              uint64_t value = read_word(&word);
              while (value == 0) {
                spin_pause();
                value = read_word(&word);
              }
              sum += value;
            }
            sync_block();
            if (thread_index() == 0) sums[block_x()] = sum;
          }) == "");
    CHECK(sums == std::vector<uint64_t>(8, 36));
  }
}

TEST_CASE("exec: waiting for another block needs a cooperative launch, and an end") {
  uint64_t word = 0;
  const auto wait = [&word] {
    while (read_word(&word) == 0) spin_pause();
  };
  CHECK(contains(run_kernel({}, {.grid = {2, 1}}, wait), "that is not cooperative"));
  const std::string text = run_kernel({}, {.is_cooperative = true}, wait);
  CHECK(contains(text, "waits for another block without end at exec_test.cpp:"));
}

TEST_CASE("exec: shared memory belongs to a block, and is undefined at first") {
  for (const bool is_cooperative : {false, true}) {
    CHECK(run_kernel({32, 4},
                     {.grid = {4, 1}, .dynamic_bytes = 300, .is_cooperative = is_cooperative}, [] {
                       struct Shared {
                         unsigned owner;
                       };
                       PKV_SHARED(Shared, shared);
                       PKV_DYNAMIC_SHARED(memory);
                       CHECK(reinterpret_cast<uintptr_t>(memory) % 128 == 0);
                       if (thread_index() == 5) {
                         CHECK(shared.owner == 0xA5A5A5A5U);
                         CHECK(memory[299] == 0xA5);
                         shared.owner = block_x();
                         memory[299] = static_cast<unsigned char>(block_x());
                       }
                       sync_block();
                       CHECK(shared.owner == block_x());
                       CHECK(memory[299] == block_x());
                     }) == "");
  }
}

TEST_CASE("exec: more shared memory than the hardware has") {
  struct Large {
    char bytes[(48 << 10) + 16];
  };
  struct Small {
    char bytes[1024];
  };
  const auto large = [] {
    PKV_SHARED(Large, shared);
    shared.bytes[0] = 0;
  };
  const auto small = [] {
    PKV_SHARED(Small, shared);
    shared.bytes[0] = 0;
  };
  CHECK(contains(run_kernel({32, 0}, {}, large), "static=49168"));
  CHECK(run_kernel({32, 0}, {.dynamic_bytes = 64 << 10}, small) == "");
  CHECK(contains(run_kernel({64, 0}, {.dynamic_bytes = 64 << 10}, small), "in all 65536"));
}

TEST_CASE("exec: launches that hardware refuses") {
  const auto nothing = [] {};
  CHECK(contains(run_kernel({}, {.threads = 96}, nothing), "96 threads"));
  CHECK(contains(run_kernel({}, {.threads = 1088}, nothing), "1088 threads"));
  CHECK(contains(run_kernel({}, {.grid = {1, 65536}}, nothing), "65536"));
  CHECK(contains(run_kernel({}, {.grid = {0, 1}}, nothing), "grid (0, 1)"));
}

TEST_CASE("exec: launches from several threads") {
  gpu_exec::Machine machine;
  std::atomic<int> total{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      const std::string text = machine.run({"probe", {10, 1}, 64, 0, false}, [&total] {
        sync_block();
        total.fetch_add(LaneGroup<32>::sum(1) / 32);
      });
      if (!text.empty()) total.fetch_add(1000000);
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(total == 4 * 10 * 64);
}

}  // namespace
}  // namespace pkv::gpu_host
