#include "core/base/process.h"

#include <pthread.h>

#include <atomic>

namespace pkv {
namespace {

std::atomic<uint32_t> forks{0};
[[maybe_unused]] const int registered = pthread_atfork(nullptr, nullptr, [] { ++forks; });

}  // namespace

uint32_t process_number() noexcept { return forks.load(std::memory_order_relaxed); }

}  // namespace pkv
