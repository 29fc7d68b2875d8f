#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

#include "tests/faults/inject.h"

namespace pkv::faults {
namespace {

std::atomic<bool> is_on{false};
std::atomic<int64_t> made{0};
std::atomic<int64_t> fail_at{0};
std::atomic<bool> fails_on{false};
std::atomic<bool> has_failed{false};

}  // namespace

void begin_memory(int64_t at, bool lasts) {
  made = 0;
  fail_at = at;
  fails_on = lasts;
  has_failed = false;
  is_on = true;
}

MemoryReport end_memory() {
  is_on = false;
  return {made, has_failed};
}

namespace {

void* allocate_or_null(std::size_t size, std::size_t alignment) noexcept {
  if (is_on) {
    const int64_t number = ++made;
    if (number == fail_at || (fails_on && number > fail_at)) {
      has_failed = true;
      return nullptr;
    }
  }
  return std::aligned_alloc(alignment, (size + alignment) / alignment * alignment);
}

void* allocate(std::size_t size, std::size_t alignment) {
  void* data = allocate_or_null(size, alignment);
  if (data == nullptr) throw std::bad_alloc();
  return data;
}

constexpr std::size_t kUsual = alignof(std::max_align_t);

}  // namespace
}  // namespace pkv::faults

using pkv::faults::allocate;
using pkv::faults::allocate_or_null;
using pkv::faults::kUsual;

void* operator new(std::size_t size) { return allocate(size, kUsual); }
void* operator new[](std::size_t size) { return allocate(size, kUsual); }
void* operator new(std::size_t size, std::align_val_t alignment) {
  return allocate(size, static_cast<std::size_t>(alignment));
}
void* operator new[](std::size_t size, std::align_val_t alignment) {
  return allocate(size, static_cast<std::size_t>(alignment));
}
void* operator new(std::size_t size, const std::nothrow_t& /*no*/) noexcept {
  return allocate_or_null(size, kUsual);
}
void* operator new[](std::size_t size, const std::nothrow_t& /*no*/) noexcept {
  return allocate_or_null(size, kUsual);
}
void* operator new(std::size_t size, std::align_val_t alignment,
                   const std::nothrow_t& /*no*/) noexcept {
  return allocate_or_null(size, static_cast<std::size_t>(alignment));
}
void* operator new[](std::size_t size, std::align_val_t alignment,
                     const std::nothrow_t& /*no*/) noexcept {
  return allocate_or_null(size, static_cast<std::size_t>(alignment));
}
void operator delete(void* data) noexcept { std::free(data); }
void operator delete[](void* data) noexcept { std::free(data); }
void operator delete(void* data, std::size_t /*size*/) noexcept { std::free(data); }
void operator delete[](void* data, std::size_t /*size*/) noexcept { std::free(data); }
void operator delete(void* data, std::align_val_t /*to*/) noexcept { std::free(data); }
void operator delete[](void* data, std::align_val_t /*to*/) noexcept { std::free(data); }
void operator delete(void* data, std::size_t /*size*/, std::align_val_t /*to*/) noexcept {
  std::free(data);
}
void operator delete[](void* data, std::size_t /*size*/, std::align_val_t /*to*/) noexcept {
  std::free(data);
}
