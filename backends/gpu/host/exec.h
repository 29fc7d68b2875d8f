// Runs GPU kernels on the host: a launch calls the kernel once per lane, each on a fiber of its
// own, so that barriers and group operations suspend a lane until the others have come.
// docs/decisions/0010-gpu-source.md says what it checks. Not here: the names that kernels use
// (gpu_rt.h, gpu_lanes.cuh).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace pkv::gpu_exec {

// Where in a kernel something happens: all lanes of an operation must be at the same place.
struct Site {
  const char* file;
  int line;

  static constexpr Site here(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    return {file, line};
  }
};

struct Grid {
  uint32_t x = 1;
  uint32_t y = 1;
};

struct Launch {
  const char* kernel;  // for texts
  Grid grid;
  int32_t threads;        // of a block; a multiple of 64
  int64_t dynamic_bytes;  // of shared memory
  bool is_cooperative;    // all blocks are alive at once and may wait for each other
};

struct Options {
  int32_t lanes = 32;  // of the hardware group that is imitated: 32 or 64
  uint64_t seed = 0;   // of the order of blocks and lanes; 0: ascending, as they become ready
};

// Shared memory that a block may ask for: static, and in all on hardware of 32 or 64 lanes.
inline constexpr int64_t kStaticShared = int64_t{48} << 10;
inline constexpr int64_t kMostShared32 = int64_t{227} << 10;
inline constexpr int64_t kMostShared64 = int64_t{64} << 10;

class Worker;

// The machine of one open device; launches from several threads run side by side.
class Machine {
 public:
  Machine();
  ~Machine();
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;

  Options options() const;
  void set_options(const Options& options);

  // Runs a launch to its end. Returns an empty text, or what is wrong with the kernel: it names
  // kernel, block and lane. Memory is then as the lanes had left it.
  std::string run(const Launch& launch, const std::function<void()>& lane);

 private:
  std::unique_ptr<Worker> take_worker();

  mutable std::mutex mutex_;
  Options options_;
  std::vector<std::unique_ptr<Worker>> idle_;
};

// What follows is called by a lane of a running kernel.

int32_t thread_index();
int32_t block_size();
Grid block_index();
Grid grid_size();
int32_t hardware_lanes();

// All lanes of the block.
void sync_block(Site site);

// The aligned run of `size` threads (a power of two up to 32) around the calling lane meets; they
// may be a part of the hardware's group, whose lanes are numbered 0 .. hardware_lanes() - 1.
void sync_group(int32_t size, Site site);
// Bit i: what hardware lane i said. Bits of lanes outside the run are noise.
uint64_t ballot(int32_t size, bool predicate, Site site);
// What hardware lane `source` gave; noise if it lies outside the run.
uint64_t shuffle(int32_t size, uint64_t bits, int32_t source, Site site);

// Inside a loop that waits for another block; the launch must be cooperative.
void spin_pause(Site site);

// The block's memory for `key`, the same for all its lanes, undefined at first.
void* static_shared(const void* key, int64_t bytes, int64_t alignment, Site site);
void* dynamic_shared();

// Ends the launch with a text.
[[noreturn]] void fail(const std::string& text, Site site);

}  // namespace pkv::gpu_exec
