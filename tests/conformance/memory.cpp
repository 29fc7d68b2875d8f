#include "tests/conformance/memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <utility>

#include "fmt/core.h"
#include "tests/conformance/failure.h"

namespace pkv::conformance {
namespace {

// Read by the signal handler. Cases run on one thread, and a call's arrays are few.
struct Guard {
  std::atomic<const uint8_t*> page = nullptr;
  const uint8_t* end = nullptr;  // of the array before it
  char name[48] = {};
};
std::array<Guard, 256> guards;
int64_t page_bytes = 0;
char* fault_text = nullptr;
int64_t fault_bytes = 0;
struct sigaction before[2];

constexpr int kSignals[2] = {SIGSEGV, SIGBUS};

int32_t add_guard(const char* name, const uint8_t* page, const uint8_t* end) {
  for (size_t i = 0; i < guards.size(); ++i) {
    if (guards[i].page != nullptr) continue;
    std::snprintf(guards[i].name, sizeof guards[i].name, "%s", name);
    guards[i].end = end;
    guards[i].page = page;
    return static_cast<int32_t>(i);
  }
  return -1;  // it still guards, without a name
}

// snprintf of numbers and strings takes no lock and no memory with the C libraries in use.
void on_fault(int signal, siginfo_t* info, void* /*context*/) {
  const auto* at = static_cast<const uint8_t*>(info->si_addr);
  for (const Guard& guard : guards) {
    const uint8_t* page = guard.page;
    if (page == nullptr || at < page || at >= page + page_bytes) continue;
    std::snprintf(fault_text, static_cast<size_t>(fault_bytes),
                  "%s was read or written %lld bytes behind its end", guard.name,
                  static_cast<long long>(at - guard.end));
  }
  // The instruction runs again, into whoever watched before; a signal that was sent has none.
  sigaction(signal, &before[signal == kSignals[0] ? 0 : 1], nullptr);
  if (info->si_code <= 0) std::raise(signal);
}

uint8_t* map(int64_t bytes) {
  void* memory = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    throw Skip(fmt::format("{} bytes of address space are not to be had", bytes));
  }
#if defined(MADV_NOHUGEPAGE)
  madvise(memory, static_cast<size_t>(bytes), MADV_NOHUGEPAGE);
#endif
  return static_cast<uint8_t*>(memory);
}

int64_t round_up(int64_t bytes, int64_t unit) { return (bytes + unit - 1) / unit * unit; }

}  // namespace

bool can_guard(const Place& place) { return place.device_type() == PKV_DEVICE_CPU; }

Memory::Memory(const Place& place, int64_t bytes, int32_t kind)
    : place_(place), data_(place.allocate(bytes, kind)) {}

Memory Memory::before_guard(const Place& place, const char* name, int64_t bytes,
                            int64_t alignment) {
  page_bytes = sysconf(_SC_PAGESIZE);
  Memory memory(place);
  const int64_t room = round_up(bytes, alignment);
  const int64_t pages = round_up(room, page_bytes);
  memory.mapped_bytes_ = pages + page_bytes;
  memory.mapped_ = map(memory.mapped_bytes_);
  memory.data_ = memory.mapped_ + pages - room;
  mprotect(memory.mapped_ + pages, static_cast<size_t>(page_bytes), PROT_NONE);
  memory.guard_ = add_guard(name, memory.mapped_ + pages, memory.data_ + bytes);
  return memory;
}

Memory Memory::sparse(const Place& place, int64_t bytes) {
  Memory memory(place);
  if (can_guard(place)) {
    memory.mapped_bytes_ = bytes;
    memory.mapped_ = memory.data_ = map(bytes);
    return memory;
  }
  void* data = nullptr;
  const pkv_status status = pkv_device_alloc(place.device(), PKV_ALLOC_DEVICE, bytes, &data);
  if (status == PKV_RESOURCE_EXHAUSTED) throw Skip(error_text("pkv_device_alloc", status));
  require("pkv_device_alloc", status);
  memory.data_ = static_cast<uint8_t*>(data);
  return memory;
}

Memory::~Memory() {
  if (guard_ >= 0) guards[static_cast<size_t>(guard_)].page = nullptr;
  if (mapped_ != nullptr) {
    munmap(mapped_, static_cast<size_t>(mapped_bytes_));
  } else if (data_ != nullptr) {
    place_.release(data_);
  }
}

Memory::Memory(Memory&& other) noexcept
    : place_(other.place_),
      data_(std::exchange(other.data_, nullptr)),
      mapped_(std::exchange(other.mapped_, nullptr)),
      mapped_bytes_(other.mapped_bytes_),
      guard_(std::exchange(other.guard_, -1)) {}

void watch_guards(char* text, int64_t bytes) {
  fault_text = text;
  fault_bytes = bytes;
  struct sigaction action = {};
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  for (size_t i = 0; i < 2; ++i) sigaction(kSignals[i], &action, &before[i]);
}

}  // namespace pkv::conformance
