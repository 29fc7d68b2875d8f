#include "tests/soak/memory.h"

#include <unistd.h>

#include <bit>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <new>

#include "pariskv/pariskv.hpp"

namespace pkv::soak {
namespace {

// Blocks of powers of two, freed ones kept by size. `size` of a block lies before it.
class Arena {
 public:
  void begin(void* data, std::size_t bytes) {
    data_ = static_cast<std::byte*>(data);
    bytes_ = bytes;
  }
  bool is_on() const { return data_ != nullptr; }
  bool holds(const void* block) const {
    const auto* at = static_cast<const std::byte*>(block);
    return is_on() && at >= data_ && at < data_ + bytes_;
  }
  void* take(std::size_t wanted) {
    const std::size_t size = std::bit_ceil(wanted + kBefore);
    const auto level = static_cast<std::size_t>(std::countr_zero(size));
    const std::lock_guard<std::mutex> lock(mutex_);
    std::byte* block = free_[level];
    if (block != nullptr) {
      free_[level] = *reinterpret_cast<std::byte**>(block + kBefore);
    } else if (size <= bytes_ - used_) {
      block = data_ + used_;
      used_ += size;
    } else {
      return nullptr;
    }
    *reinterpret_cast<std::size_t*>(block) = level;
    return block + kBefore;
  }
  void give(void* data) {
    std::byte* block = static_cast<std::byte*>(data) - kBefore;
    const std::size_t level = *reinterpret_cast<std::size_t*>(block);
    const std::lock_guard<std::mutex> lock(mutex_);
    *reinterpret_cast<std::byte**>(data) = free_[level];
    free_[level] = block;
  }

 private:
  static constexpr std::size_t kBefore = 16;
  std::mutex mutex_;
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0, used_ = 0;
  std::byte* free_[48] = {};
};

Arena arena;  // constant initialisation: operator new runs before main

void* allocate(std::size_t size) {
  void* data = arena.is_on() ? arena.take(size < 16 ? 16 : size) : std::malloc(size < 1 ? 1 : size);
  if (data == nullptr) throw std::bad_alloc();
  return data;
}

void release(void* data) {
  if (arena.holds(data)) {
    arena.give(data);
  } else {
    std::free(data);
  }
}

}  // namespace

void use_device_memory(pkv_device* device, std::size_t bytes) {
  void* data = nullptr;
  check(pkv_device_alloc(device, PKV_ALLOC_HOST, static_cast<int64_t>(bytes), &data));
  arena.begin(data, bytes);  // stays until the process ends
}

std::size_t resident_bytes() {
  long pages = 0, resident = 0;
  std::FILE* file = std::fopen("/proc/self/statm", "r");
  if (file == nullptr) return 0;
  const int read = std::fscanf(file, "%ld %ld", &pages, &resident);
  std::fclose(file);
  return read == 2 ? static_cast<std::size_t>(resident) *
                         static_cast<std::size_t>(::sysconf(_SC_PAGESIZE))
                   : 0;
}

}  // namespace pkv::soak

void* operator new(std::size_t size) { return pkv::soak::allocate(size); }
void* operator new[](std::size_t size) { return pkv::soak::allocate(size); }
void operator delete(void* data) noexcept { pkv::soak::release(data); }
void operator delete[](void* data) noexcept { pkv::soak::release(data); }
void operator delete(void* data, std::size_t /*size*/) noexcept { pkv::soak::release(data); }
void operator delete[](void* data, std::size_t /*size*/) noexcept { pkv::soak::release(data); }
