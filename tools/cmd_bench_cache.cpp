#include "tools/cmd_bench_cache.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <fstream>
#include <limits>
#include <string>

#if defined(__GLIBC__)
#include <malloc.h>
#endif

namespace pkv::cli {
namespace {

// Four to a line of 64 bytes; each sum has a register of its own, so that none waits for another.
using Vector = uint64_t __attribute__((vector_size(16)));
constexpr int kLineVectors = 4;
constexpr int64_t kLineBytes = kLineVectors * int64_t{sizeof(Vector)};
// A thread that reads in one go is held up by what its core asks for ahead: half as fast as this on
// some processors.
constexpr int64_t kStreams = 4;
constexpr int64_t kLinesAhead = 16;
constexpr int kSpins = 20000;  // some 50 us
constexpr int64_t kUnknownCacheBytes = int64_t{64} << 20;

}  // namespace

int64_t cache_bytes() {
  int64_t bytes = 0;
#if defined(_SC_LEVEL3_CACHE_SIZE)
  for (const int name : {_SC_LEVEL4_CACHE_SIZE, _SC_LEVEL3_CACHE_SIZE, _SC_LEVEL2_CACHE_SIZE}) {
    bytes = std::max<int64_t>(bytes, ::sysconf(name));
  }
#endif
  return bytes > 0 ? bytes : kUnknownCacheBytes;
}

int64_t available_bytes() {
  std::ifstream file("/proc/meminfo");
  std::string name;
  std::string unit;
  int64_t kilobytes = 0;
  while (file >> name >> kilobytes && std::getline(file, unit)) {
    if (name == "MemAvailable:") return kilobytes * 1024;
  }
  return std::numeric_limits<int64_t>::max();
}

Reader::Reader(int64_t threads) : pending_(0) {
  for (int64_t thread = 1; thread < threads; ++thread) {
    threads_.emplace_back([this, thread] { work(thread); });
  }
}

Reader::~Reader() {
  is_over_ = true;
  ++round_;
  round_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Reader::work(int64_t thread) {
  for (uint32_t seen = 0;; ++seen) {
    for (int spin = 0; spin < kSpins && round_ == seen; ++spin) {
    }
    round_.wait(seen);
    if (is_over_) return;
    read_piece(thread);
    --pending_;
  }
}

void Reader::read_piece(int64_t thread) {
  const auto pieces = (static_cast<int64_t>(threads_.size()) + 1) * kStreams;
  const int64_t lines = lines_ / pieces;  // of each stream
  const char* begin = data_ + thread * kStreams * lines * kLineBytes;
  Vector a = {};
  Vector b = {};
  Vector c = {};
  Vector d = {};
  for (int64_t line = 0; line < lines; ++line) {
    for (int64_t stream = 0; stream < kStreams; ++stream) {
      const char* from = begin + (stream * lines + line) * kLineBytes;
      __builtin_prefetch(from + kLinesAhead * kLineBytes);
      Vector read[kLineVectors];
      std::memcpy(read, from, sizeof read);
      a += read[0];
      b += read[1];
      c += read[2];
      d += read[3];
    }
  }
  const Vector sum = (a + b) + (c + d);
  sum_.fetch_add(sum[0] + sum[1], std::memory_order_relaxed);
}

void Reader::run(const void* data, int64_t bytes) {
  data_ = static_cast<const char*>(data);
  lines_ = bytes / kLineBytes;
  pending_ = static_cast<int64_t>(threads_.size());
  ++round_;
  round_.notify_all();
  read_piece(0);
  for (int spin = 0; pending_ != 0; ++spin) {
    if (spin > kSpins) std::this_thread::yield();
  }
}

double Reader::read(const void* data, int64_t bytes) {
  run(data, 0);
  const auto start = std::chrono::steady_clock::now();
  run(data, bytes);
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start)
      .count();
}

void Reader::sweep() {
  if (other_.empty()) {
    other_.assign(static_cast<size_t>(cache_bytes() + cache_bytes() / 4) / sizeof(uint64_t), 1);
  }
  run(other_.data(), static_cast<int64_t>(other_.size() * sizeof(uint64_t)));
}

KeepFreedMemory::KeepFreedMemory() {
#if defined(__GLIBC__)
  mallopt(M_MMAP_MAX, 0);
  mallopt(M_TRIM_THRESHOLD, std::numeric_limits<int>::max());
#endif
}

KeepFreedMemory::~KeepFreedMemory() {
#if defined(__GLIBC__)
  mallopt(M_MMAP_MAX, 65536);  // the library's defaults
  mallopt(M_TRIM_THRESHOLD, 128 * 1024);
  malloc_trim(0);
#endif
}

}  // namespace pkv::cli
