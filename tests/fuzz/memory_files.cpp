// Files in memory: open, fstat, pread and close of their paths never reach the system, whose calls
// would be most of the time of a small input. All other paths and descriptors do.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdarg>

#include "tests/fuzz/fuzz.h"

namespace pkv::fuzz {
namespace {

constexpr std::string_view kFolder = "/memory/";
constexpr std::size_t kMostFiles = 10;  // their names are digits
constexpr int kFirst = 1 << 20;         // above every descriptor of the system

std::array<const std::vector<uint8_t>*, kMostFiles>& files() {
  static std::array<const std::vector<uint8_t>*, kMostFiles> all{};
  return all;
}

const std::vector<uint8_t>* file_at(int descriptor) {
  const int at = descriptor - kFirst;
  return at >= 0 && at < static_cast<int>(kMostFiles) ? files()[static_cast<std::size_t>(at)]
                                                      : nullptr;
}

// Of the memory file with this path, or -1.
int descriptor_of(std::string_view path) {
  if (!path.starts_with(kFolder) || path.size() != kFolder.size() + 1) return -1;
  const int descriptor = kFirst + (path.back() - '0');
  return file_at(descriptor) == nullptr ? -1 : descriptor;
}

template <class Function>
Function system_call(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

}  // namespace

MemoryFile::MemoryFile() {
  auto& all = files();
  const auto free = std::find(all.begin(), all.end(), nullptr);
  require(free != all.end(), "there is room for another memory file");
  *free = &bytes_;
  path_ = std::string(kFolder) + std::to_string(free - all.begin());
}

MemoryFile::~MemoryFile() {
  for (const std::vector<uint8_t>*& file : files()) {
    if (file == &bytes_) file = nullptr;
  }
}

const std::vector<uint8_t>* memory_file(std::string_view path) {
  const int descriptor = descriptor_of(path);
  return descriptor < 0 ? nullptr : file_at(descriptor);
}

}  // namespace pkv::fuzz

using pkv::fuzz::file_at;
using pkv::fuzz::system_call;

// visibility: the library's calls come here too
#define PKV_IN_FRONT extern "C" __attribute__((visibility("default")))

PKV_IN_FRONT int open(const char* path, int flags, ...) {
  const int descriptor = pkv::fuzz::descriptor_of(path);
  if (descriptor >= 0) return descriptor;
  mode_t mode = 0;
  if ((flags & (O_CREAT | O_TMPFILE)) != 0) {
    va_list more;
    va_start(more, flags);
    mode = va_arg(more, mode_t);
    va_end(more);
  }
  static const auto real = system_call<int (*)(const char*, int, ...)>("open");
  return real(path, flags, mode);
}

PKV_IN_FRONT int fstat(int descriptor, struct stat* about) noexcept {
  if (const auto* file = file_at(descriptor); file != nullptr) {
    *about = {};
    about->st_mode = S_IFREG | 0600;
    about->st_size = static_cast<off_t>(file->size());
    return 0;
  }
  static const auto real = system_call<int (*)(int, struct stat*)>("fstat");
  return real(descriptor, about);
}

PKV_IN_FRONT ssize_t pread(int descriptor, void* out, size_t count, off_t offset) {
  if (const auto* file = file_at(descriptor); file != nullptr) {
    if (offset < 0) return errno = EINVAL, -1;
    const std::size_t begin = std::min(static_cast<std::size_t>(offset), file->size());
    const std::size_t got = std::min(count, file->size() - begin);
    std::copy_n(file->data() + begin, got, static_cast<uint8_t*>(out));
    return static_cast<ssize_t>(got);
  }
  static const auto real = system_call<ssize_t (*)(int, void*, size_t, off_t)>("pread");
  return real(descriptor, out, count, offset);
}

PKV_IN_FRONT int close(int descriptor) {
  if (file_at(descriptor) != nullptr) return 0;
  static const auto real = system_call<int (*)(int)>("close");
  return real(descriptor);
}
