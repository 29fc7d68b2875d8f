#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <map>
#include <mutex>

#include "tests/faults/inject.h"

namespace pkv::faults {
namespace {

struct State {
  std::mutex mutex;
  bool is_on = false;
  Fault fault;
  FileReport report;
  std::map<int, std::string> paths;  // of descriptors opened meanwhile
};
State& state() {
  static State* const kept = new State;
  return *kept;
}

enum class Outcome { kDone, kFails, kHalf };

Outcome count(Call call) {
  State& s = state();
  const int64_t number = ++s.report.counts[static_cast<int>(call)];
  const bool is_hit = s.fault.at > 0 && call == s.fault.call &&
                      (number == s.fault.at || (s.fault.lasts && number > s.fault.at));
  if (!is_hit) return Outcome::kDone;
  s.report.was_made = true;
  if (s.fault.error == 0) return Outcome::kHalf;
  errno = s.fault.error;
  return Outcome::kFails;
}

template <class Function>
Function system_call(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

// The call, counted and noted while a test wants it.
template <class Body>
auto watched(Body body) {
  const std::lock_guard<std::mutex> lock(state().mutex);
  return body(state());
}

}  // namespace

void begin_files(const Fault* fault) {
  watched([&](State& s) {
    s.report = {};
    s.paths.clear();
    s.fault = fault == nullptr ? Fault{} : *fault;
    s.is_on = true;
    return 0;
  });
}

FileReport end_files() {
  return watched([](State& s) {
    s.is_on = false;
    return std::move(s.report);
  });
}

namespace {

int open_watched(const char* path, int flags, mode_t mode) {
  static const auto real = system_call<int (*)(const char*, int, ...)>("open");
  return watched([&](State& s) {
    if (s.is_on && count(Call::kOpen) == Outcome::kFails) return -1;
    const int descriptor = real(path, flags, mode);
    if (s.is_on && descriptor >= 0) {
      s.paths[descriptor] = path;
      if ((flags & O_CREAT) != 0) s.report.events.push_back({Call::kOpen, path, "", 0, ""});
    }
    return descriptor;
  });
}

int rename_watched(const char* from, const char* to, bool replaces) {
  static const auto real =
      system_call<int (*)(int, const char*, int, const char*, unsigned)>("renameat2");
  return watched([&](State& s) {
    if (s.is_on && count(Call::kRename) == Outcome::kFails) return -1;
    const int result = real(AT_FDCWD, from, AT_FDCWD, to, replaces ? 0U : RENAME_NOREPLACE);
    if (s.is_on && result == 0) s.report.events.push_back({Call::kRename, from, to, 0, ""});
    return result;
  });
}

}  // namespace
}  // namespace pkv::faults

// Exported, so that the library's calls come here.
#define PKV_FAULTS_SYSTEM extern "C" __attribute__((visibility("default")))
using pkv::faults::Call;
using pkv::faults::Outcome;

PKV_FAULTS_SYSTEM int open(const char* path, int flags, ...) {
  mode_t mode = 0;
  if ((flags & O_CREAT) != 0) {
    va_list more;
    va_start(more, flags);
    mode = static_cast<mode_t>(va_arg(more, int));
    va_end(more);
  }
  return pkv::faults::open_watched(path, flags, mode);
}

PKV_FAULTS_SYSTEM ssize_t pread(int descriptor, void* target, size_t bytes, off_t offset) {
  static const auto real =
      pkv::faults::system_call<ssize_t (*)(int, void*, size_t, off_t)>("pread");
  return pkv::faults::watched([&](auto& s) -> ssize_t {
    const Outcome outcome = s.is_on ? pkv::faults::count(Call::kRead) : Outcome::kDone;
    if (outcome == Outcome::kFails) return -1;
    return real(descriptor, target, outcome == Outcome::kHalf ? (bytes + 1) / 2 : bytes, offset);
  });
}

// The name that a build with checked calls of the C library uses.
PKV_FAULTS_SYSTEM ssize_t __pread_chk(int descriptor, void* target, size_t bytes, off_t offset,
                                      size_t /*room*/) {
  return pread(descriptor, target, bytes, offset);
}

PKV_FAULTS_SYSTEM ssize_t pwrite(int descriptor, const void* data, size_t bytes, off_t offset) {
  static const auto real =
      pkv::faults::system_call<ssize_t (*)(int, const void*, size_t, off_t)>("pwrite");
  return pkv::faults::watched([&](auto& s) -> ssize_t {
    const Outcome outcome = s.is_on ? pkv::faults::count(Call::kWrite) : Outcome::kDone;
    if (outcome == Outcome::kFails) return -1;
    const ssize_t put =
        real(descriptor, data, outcome == Outcome::kHalf ? (bytes + 1) / 2 : bytes, offset);
    if (s.is_on && put > 0) {
      s.report.events.push_back(
          {Call::kWrite, s.paths[descriptor], "", offset,
           std::string(static_cast<const char*>(data), static_cast<size_t>(put))});
    }
    return put;
  });
}

PKV_FAULTS_SYSTEM int ftruncate(int descriptor, off_t length) {
  static const auto real = pkv::faults::system_call<int (*)(int, off_t)>("ftruncate");
  return pkv::faults::watched([&](auto& s) {
    if (s.is_on && pkv::faults::count(Call::kTruncate) == Outcome::kFails) return -1;
    if (s.is_on) {
      s.report.events.push_back({Call::kTruncate, s.paths[descriptor], "", length, ""});
    }
    return real(descriptor, length);
  });
}

PKV_FAULTS_SYSTEM int fsync(int descriptor) {
  static const auto real = pkv::faults::system_call<int (*)(int)>("fsync");
  return pkv::faults::watched([&](auto& s) {
    if (s.is_on && pkv::faults::count(Call::kFlush) == Outcome::kFails) return -1;
    if (s.is_on) s.report.events.push_back({Call::kFlush, s.paths[descriptor], "", 0, ""});
    return real(descriptor);
  });
}

PKV_FAULTS_SYSTEM int close(int descriptor) {
  static const auto real = pkv::faults::system_call<int (*)(int)>("close");
  return pkv::faults::watched([&](auto& s) {
    // The descriptor is gone all the same, as with the system's.
    const int result = real(descriptor);
    return s.is_on && pkv::faults::count(Call::kClose) == Outcome::kFails ? -1 : result;
  });
}

PKV_FAULTS_SYSTEM int rename(const char* from, const char* to) noexcept {
  return pkv::faults::rename_watched(from, to, true);
}

PKV_FAULTS_SYSTEM int renameat2(int /*from_folder*/, const char* from, int /*to_folder*/,
                                const char* to, unsigned flags) noexcept {
  return pkv::faults::rename_watched(from, to, (flags & RENAME_NOREPLACE) == 0);
}

PKV_FAULTS_SYSTEM int unlink(const char* path) noexcept {
  static const auto real = pkv::faults::system_call<int (*)(const char*)>("unlink");
  return pkv::faults::watched([&](auto& s) {
    if (s.is_on && pkv::faults::count(Call::kUnlink) == Outcome::kFails) return -1;
    if (s.is_on) s.report.events.push_back({Call::kUnlink, path, "", 0, ""});
    return real(path);
  });
}
