#include "backends/gpu/host/apart.h"

#include <sanitizer/asan_interface.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string_view>

namespace pkv::gpu_host {
namespace {

struct Pieces {
  std::mutex mutex;
  std::map<void*, std::size_t> bytes;
  int reaches = 0;
};

// Never destroyed: devices may close after static objects.
Pieces& pieces() {
  static Pieces* const all = new Pieces;
  return *all;
}

void protect(const Pieces& all, int protection) {
  for (const auto& [data, bytes] : all.bytes) ::mprotect(data, bytes, protection);
}

}  // namespace

bool is_apart() {
  static const bool is_set = [] {
    const char* value = std::getenv("PKV_GPU_HOST_APART");
    return value != nullptr && std::string_view(value) == "1";
  }();
  return is_set;
}

void* apart_alloc(std::size_t bytes) {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  if (bytes > SIZE_MAX - page) return nullptr;
  const std::size_t whole = (bytes + page - 1) / page * page;
  Pieces& all = pieces();
  const std::lock_guard<std::mutex> lock(all.mutex);
  const int protection = all.reaches > 0 ? PROT_READ | PROT_WRITE : PROT_NONE;
  void* data = ::mmap(nullptr, whole, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) return nullptr;
  // Where a fiber's stack has been, its redzones are still marked.
  ASAN_UNPOISON_MEMORY_REGION(data, whole);
  all.bytes.emplace(data, whole);
  return data;
}

void apart_free(void* data) {
  Pieces& all = pieces();
  const std::lock_guard<std::mutex> lock(all.mutex);
  const auto found = all.bytes.find(data);
  if (found == all.bytes.end()) return;
  ::munmap(data, found->second);
  all.bytes.erase(found);
}

Reach::Reach() {
  if (!is_apart()) return;
  Pieces& all = pieces();
  const std::lock_guard<std::mutex> lock(all.mutex);
  if (all.reaches++ == 0) protect(all, PROT_READ | PROT_WRITE);
}

Reach::~Reach() {
  if (!is_apart()) return;
  Pieces& all = pieces();
  const std::lock_guard<std::mutex> lock(all.mutex);
  if (--all.reaches == 0) protect(all, PROT_NONE);
}

}  // namespace pkv::gpu_host
