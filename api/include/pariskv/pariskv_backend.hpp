// Helpers for authors of backends in C++: header-only, the C++20 standard library and nothing else.
// A slot of pariskv_backend.h returns a status and leaves a sentence with the host; `refuse` writes
// the sentence, `guard` keeps exceptions on this side of the table.
#pragma once

#include <atomic>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <new>

#include "pariskv/pariskv_backend.h"

#if defined(__GNUC__)
#define PKV_PRINTF_LIKE(text, first) __attribute__((format(printf, text, first)))
#else
#define PKV_PRINTF_LIKE(text, first)
#endif

namespace pkv::backend {

// Leaves a text in the manner of printf, at most 511 bytes of it, with the host; returns `status`:
//   return refuse(host, PKV_UNIMPLEMENTED, "head_dim=%d: multiples of 8 from 8 to 576", head_dim);
PKV_PRINTF_LIKE(3, 4)
inline pkv_status refuse(const pkv_host* host, pkv_status status, const char* format, ...) {
  char text[512];
  std::va_list values;
  va_start(values, format);
  std::vsnprintf(text, sizeof text, format, values);
  va_end(values);
  if (host != nullptr && host->report != nullptr) host->report(host, text);
  return status;
}

// Runs `body`, which returns a pkv_status, and turns an exception into a status and its text.
// Every slot that can throw has one around all of it.
template <class Body>
pkv_status guard(const pkv_host* host, Body&& body) noexcept {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return refuse(host, PKV_RESOURCE_EXHAUSTED, "out of host memory");
  } catch (const std::exception& error) {
    return refuse(host, PKV_INTERNAL, "unexpected exception: %s", error.what());
  } catch (...) {
    return refuse(host, PKV_INTERNAL, "unexpected exception of unknown type");
  }
}

// Whether a host that offers `host_max_abi` (argument of the query function) can use a backend
// built with this header; leaves the reason if not.
inline bool accepts_host(uint32_t host_max_abi, const pkv_host* host) {
  constexpr uint32_t kNeeded = PKV_BACKEND_ABI_MAJOR << 16 | PKV_BACKEND_ABI_MINOR;
  if (host_max_abi >> 16 == PKV_BACKEND_ABI_MAJOR && host_max_abi >= kNeeded) return true;
  refuse(host, PKV_FAILED_PRECONDITION,
         "backend interface %u.%u offered: %d.%d or a later %d.x is needed", host_max_abi >> 16,
         host_max_abi & 0xffffU, PKV_BACKEND_ABI_MAJOR, PKV_BACKEND_ABI_MINOR,
         PKV_BACKEND_ABI_MAJOR);
  return false;
}

// PKV_BUILD_* of the file that calls it, for pkv_backend::build_flags.
constexpr uint32_t build_flags() {
  uint32_t flags = 0;
#if defined(__SANITIZE_ADDRESS__)
  flags |= PKV_BUILD_ASAN;
#endif
#if defined(__SANITIZE_THREAD__)
  flags |= PKV_BUILD_TSAN;
#endif
#if defined(__has_feature)
#if __has_feature(address_sanitizer)
  flags |= PKV_BUILD_ASAN;
#endif
#if __has_feature(thread_sanitizer)
  flags |= PKV_BUILD_TSAN;
#endif
#endif
#if !defined(NDEBUG)
  flags |= PKV_BUILD_DEBUG;
#endif
  return flags;
}

// How often each of a backend's paths has run, its kernels for instance: what the device option
// `paths` tells (docs/backend-guide.md). One object for the process, without a destructor; until
// the option is set, a note costs a load.
//   constexpr const char* kPaths[] = {"vote_keys", ..};
//   inline constinit backend::Paths paths(kPaths);
template <std::size_t N>
class Paths {
 public:
  explicit constexpr Paths(const char* const (&names)[N]) : names_(names) {}
  Paths(const Paths&) = delete;
  Paths& operator=(const Paths&) = delete;

  // A name that is not in the list is counted nowhere; empty ones are none.
  void note(const char* name) {
    if (!is_on_.load(std::memory_order_relaxed)) return;
    for (std::size_t i = 0; i < N; ++i) {
      if (std::strcmp(names_[i], name) == 0) counts_[i].fetch_add(1, std::memory_order_relaxed);
    }
  }

  // The option: "count" begins; "log" gives the host a line "path NAME COUNT" of each, as debug.
  pkv_status set(const pkv_host* host, const char* value) {
    if (std::strcmp(value, "count") == 0) {
      is_on_ = true;
      return PKV_OK;
    }
    if (std::strcmp(value, "log") != 0) {
      return refuse(host, PKV_INVALID_ARGUMENT, "paths=%.64s: must be count or log", value);
    }
    for (std::size_t i = 0; i < N; ++i) {
      if (*names_[i] == '\0') continue;
      char text[160];
      std::snprintf(text, sizeof text, "path %.100s %llu", names_[i],
                    static_cast<unsigned long long>(counts_[i].load()));
      if (host->log != nullptr) host->log(host, 3, text);
    }
    return PKV_OK;
  }

 private:
  const char* const (&names_)[N];
  std::atomic<uint64_t> counts_[N] = {};
  std::atomic<bool> is_on_ = false;
};

}  // namespace pkv::backend
