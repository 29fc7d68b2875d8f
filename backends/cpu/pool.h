// The threads of a device: a oneTBB arena of its own, or the caller's runner.
// Work is a count of independent items, done in blocks of `grain` items; which worker takes which
// block must not matter to the result.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>

#include "pariskv/pariskv_backend.h"

namespace pkv::cpu {

inline constexpr int32_t kMaxThreads = 1024;

class Pool {
 public:
  // All threads that the process may use.
  explicit Pool(const pkv_host* host);
  ~Pool();

  // Workers that may touch the scratch of a call at once. `reserve_workers` is for scratch_bytes:
  // scratch is sized for the number it returns, so more are refused from then on.
  int32_t workers() const;
  int32_t reserve_workers();

  // Of oneTBB; 0: all that the process may use. Refuses what is not in 0..kMaxThreads.
  pkv_status set_threads(int64_t threads);
  // NULL: oneTBB again. `workers` and `run` NULL: oneTBB, and `cancelled` is asked.
  pkv_status set_runner(const pkv_parallel* runner);

  // Calls body(index, worker) once for each index in [0, count), worker in [0, workers()), on many
  // threads; without a runner a single block stays on the calling one. If it is not OK, with a
  // text, some bodies did not run: PKV_CANCELLED between two blocks, or PKV_FAILED_PRECONDITION by
  // what the runner did. A body may use 128 KiB of stack.
  template <class Body>
  pkv_status parallel(int64_t count, int64_t grain, const Body& body) const {
    return run(
        count, grain,
        [](const void* context, int64_t index, int32_t worker) {
          (*static_cast<const Body*>(context))(index, worker);
        },
        &body);
  }

 private:
  struct Threads;
  using BodyFn = void (*)(const void* context, int64_t index, int32_t worker);
  pkv_status run(int64_t count, int64_t grain, BodyFn body, const void* context) const;
  std::shared_ptr<const Threads> threads() const;
  pkv_status install(int32_t own_threads, const pkv_parallel& runner, int32_t runner_workers);

  const pkv_host* host_;
  mutable std::mutex mutex_;  // of what follows
  std::shared_ptr<const Threads> threads_;
  int32_t own_threads_;             // the option, also while a runner is there
  int32_t reserved_ = kMaxThreads;  // the fewest that reserve_workers returned
};

}  // namespace pkv::cpu
