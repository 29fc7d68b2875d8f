// Asks for memory that is read soon.
#pragma once

#include <cstddef>
#include <cstdint>

namespace pkv::cpu {

// Into the second cache level: what is asked for far ahead would push the present work out of the
// first. Measured in ../../docs/decisions/0007-cpu-record-layout.md's setting: half the time of the
// rerank's gather against the first level.
inline void prefetch(const void* address) { __builtin_prefetch(address, 0, 2); }

inline void prefetch_range(const void* begin, int64_t bytes) {
  const auto* line = static_cast<const std::byte*>(begin);
  for (int64_t at = 0; at < bytes; at += 64) prefetch(line + at);
}

}  // namespace pkv::cpu
