// Memory as `pariskv bench` looks at it: how fast a plain read is, and how caches are emptied.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

namespace pkv::cli {

// Of the processor's largest cache, as the system tells it.
int64_t cache_bytes();
// That can be allocated without others being pushed out; INT64_MAX where the system does not tell.
int64_t available_bytes();

// Threads that read memory. Between reads they spin for a short time, then sleep, so that they are
// not in the way of what is measured next.
class Reader {
 public:
  explicit Reader(int64_t threads);
  ~Reader();
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  // Every byte once, but for a rest that streams of equal length leave (below 256 a thread), and
  // nothing but sums made of it. Returns microseconds, without those that it takes to wake threads.
  double read(const void* data, int64_t bytes);
  // Reads memory of its own, more than cache_bytes(): what was in the caches is not any more.
  void sweep();

 private:
  void work(int64_t thread);
  void read_piece(int64_t thread);
  void run(const void* data, int64_t bytes);

  const char* data_ = nullptr;
  int64_t lines_ = 0;
  std::atomic<uint64_t> sum_{0};  // so that reads are not optimised away
  std::atomic<uint32_t> round_{0};
  std::atomic<int64_t> pending_{0};
  std::atomic<bool> is_over_{false};
  std::vector<uint64_t> other_;
  std::vector<std::thread> threads_;
};

// While it lives, what is freed stays mapped for the next allocation: an allocation of scratch
// within a timed call then costs no page faults. Only the C library's own heap obeys.
class KeepFreedMemory {
 public:
  KeepFreedMemory();
  ~KeepFreedMemory();
  KeepFreedMemory(const KeepFreedMemory&) = delete;
  KeepFreedMemory& operator=(const KeepFreedMemory&) = delete;
};

}  // namespace pkv::cli
