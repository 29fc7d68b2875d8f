// The only file that knows oneTBB.
#include "backends/cpu/pool.h"

#include <oneapi/tbb/blocked_range.h>
#include <oneapi/tbb/global_control.h>
#include <oneapi/tbb/info.h>
#include <oneapi/tbb/parallel_for.h>
#include <oneapi/tbb/partitioner.h>
#include <oneapi/tbb/task_arena.h>

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <optional>

#include "pariskv/pariskv_backend.hpp"

namespace pkv::cpu {
namespace {

using backend::refuse;

int32_t available() {
  return std::clamp(static_cast<int32_t>(tbb::info::default_concurrency()), 1, kMaxThreads);
}

// The process in which oneTBB has started threads. A child of it has none of them, and what oneTBB
// knows about them is not true any more: there the calling thread does all.
std::atomic<pid_t> started_in{0};

bool may_start_threads() {
  const pid_t process = getpid();
  pid_t first = 0;
  return started_in.compare_exchange_strong(first, process) || first == process;
}

// oneTBB is built without ThreadSanitizer, which then cannot see that it orders tasks: this file is
// not instrumented (CMakeLists.txt) and says so itself.
#if defined(PKV_POOL_TELLS_TSAN)
extern "C" void __tsan_acquire(void* address);
extern "C" void __tsan_release(void* address);
void take_over(void* work) { __tsan_acquire(work); }
void hand_on(void* work) { __tsan_release(work); }
#else
void take_over(void* /*work*/) {}
void hand_on(void* /*work*/) {}
#endif

// One call of Pool::parallel, shared by its workers.
struct Call {
  void (*body)(const void* context, int64_t index, int32_t worker);
  const void* context;
  int64_t count;
  int64_t grain;
  int32_t workers;
  const pkv_parallel& runner;
  std::atomic<int64_t> done{0};  // items
  std::atomic<bool> is_cancelled{false};
  std::atomic<int32_t> bad_worker{0};

  int64_t blocks() const { return (count + grain - 1) / grain; }

  void run_block(int64_t block, int32_t worker) {
    if (block < 0 || block >= blocks()) return;
    if (worker < 0 || worker >= workers) {
      bad_worker = worker;
      return;
    }
    if (is_cancelled) return;
    if (runner.cancelled != nullptr && runner.cancelled(runner.user) != 0) {
      is_cancelled = true;
      return;
    }
    const int64_t end = std::min(count, (block + 1) * grain);
    for (int64_t i = block * grain; i < end; ++i) body(context, i, worker);
    done += end - block * grain;
  }

  pkv_status finish(const pkv_host* host) const {
    if (done == count) return PKV_OK;
    const auto ran = static_cast<long long>(done.load());
    const auto all = static_cast<long long>(count);
    if (is_cancelled) {
      return refuse(host, PKV_CANCELLED, "cancelled by the caller: %lld of %lld items were done",
                    ran, all);
    }
    if (bad_worker != 0) {
      return refuse(host, PKV_FAILED_PRECONDITION,
                    "the caller's runner gave worker=%d: must be from 0 to %d", bad_worker.load(),
                    workers - 1);
    }
    return refuse(host, PKV_FAILED_PRECONDITION,
                  "the caller's runner came back when %lld of %lld items were done", ran, all);
  }
};

}  // namespace

struct Pool::Threads {
  Threads(int32_t count, const pkv_parallel& caller)
      : workers(count), runner(caller), arena(count) {
    if (runner.run == nullptr && count > available()) {
      more.emplace(tbb::global_control::max_allowed_parallelism, static_cast<size_t>(count));
    }
  }

  int32_t workers;
  pkv_parallel runner;                      // run = NULL: the arena
  std::optional<tbb::global_control> more;  // threads than oneTBB would start by itself
  mutable tbb::task_arena arena;            // its threads start with the first call
};

Pool::Pool(const pkv_host* host)
    : host_(host),
      threads_(std::make_shared<const Threads>(available(), pkv_parallel{})),
      own_threads_(available()) {}
Pool::~Pool() = default;

std::shared_ptr<const Pool::Threads> Pool::threads() const {
  const std::lock_guard lock(mutex_);
  return threads_;
}

int32_t Pool::workers() const { return threads()->workers; }

int32_t Pool::reserve_workers() {
  const std::lock_guard lock(mutex_);
  reserved_ = std::min(reserved_, threads_->workers);
  return threads_->workers;
}

pkv_status Pool::install(int32_t own_threads, const pkv_parallel& runner, int32_t runner_workers) {
  const int32_t count = runner.run != nullptr ? runner_workers : own_threads;
  auto threads = std::make_shared<const Threads>(count, runner);
  const std::lock_guard lock(mutex_);
  if (count > reserved_) {
    return refuse(host_, PKV_FAILED_PRECONDITION,
                  "threads=%d: scratch was sized for %d before; choose first, then plan", count,
                  reserved_);
  }
  own_threads_ = own_threads;
  threads_ = std::move(threads);
  return PKV_OK;
}

pkv_status Pool::set_threads(int64_t count) {
  if (count < 0 || count > kMaxThreads) {
    return refuse(host_, PKV_INVALID_ARGUMENT,
                  "threads=%lld: must be from 1 to %d, or 0 for all %d of this process",
                  static_cast<long long>(count), kMaxThreads, available());
  }
  const std::shared_ptr<const Threads> now = threads();
  return install(count == 0 ? available() : static_cast<int32_t>(count), now->runner, now->workers);
}

pkv_status Pool::set_runner(const pkv_parallel* runner) {
  pkv_parallel copy = {};
  if (runner != nullptr) {
    std::memcpy(&copy, runner, std::min<size_t>(runner->struct_size, sizeof copy));
  }
  if ((copy.run == nullptr) != (copy.workers == nullptr)) {
    return refuse(host_, PKV_INVALID_ARGUMENT, "parallel runner: %s is NULL and %s is not",
                  copy.run == nullptr ? "run" : "workers", copy.run == nullptr ? "workers" : "run");
  }
  const int32_t count = copy.run == nullptr ? 0 : copy.workers(copy.user);
  if (copy.run != nullptr && (count < 1 || count > kMaxThreads)) {
    return refuse(host_, PKV_INVALID_ARGUMENT,
                  "parallel runner with workers=%d: must be from 1 to %d", count, kMaxThreads);
  }
  int32_t own_threads = 0;
  {
    const std::lock_guard lock(mutex_);
    own_threads = own_threads_;
  }
  return install(own_threads, copy, count);
}

pkv_status Pool::run(int64_t count, int64_t grain, BodyFn body, const void* context) const {
  if (count <= 0) return PKV_OK;
  const std::shared_ptr<const Threads> threads = this->threads();
  Call call{body, context, count, std::max<int64_t>(grain, 1), threads->workers, threads->runner};
  const int64_t blocks = call.blocks();
  if (threads->runner.run != nullptr) {
    threads->runner.run(
        threads->runner.user, blocks,
        [](void* shared, int64_t block, int32_t worker) {
          static_cast<Call*>(shared)->run_block(block, worker);
        },
        &call);
  } else if (blocks == 1 || threads->workers == 1 || !may_start_threads()) {
    for (int64_t block = 0; block < blocks; ++block) call.run_block(block, 0);
  } else {
    hand_on(&call);
    threads->arena.execute([&call, blocks] {
      tbb::parallel_for(
          tbb::blocked_range<int64_t>(0, blocks, 1),
          [&call](const tbb::blocked_range<int64_t>& range) {
            take_over(&call);
            for (int64_t block = range.begin(); block != range.end(); ++block) {
              call.run_block(block, tbb::this_task_arena::current_thread_index());
            }
            hand_on(&call);
          },
          tbb::simple_partitioner());
    });
    take_over(&call);
  }
  return call.finish(host_);
}

}  // namespace pkv::cpu
