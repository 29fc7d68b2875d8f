// Asks for memory that is read soon.
#pragma once

#include <cstddef>
#include <cstdint>

namespace pkv::cpu {

// Into the second cache level: what is asked for far ahead would push the present work out of the
// first.
inline void prefetch(const void* address) { __builtin_prefetch(address, 0, 2); }

inline void prefetch_range(const void* begin, int64_t bytes) {
  const auto* line = static_cast<const std::byte*>(begin);
  for (int64_t at = 0; at < bytes; at += 64) prefetch(line + at);
}

// Addresses of lines, asked for a few at a time while something else is computed.
struct LinesAhead {
  const void* const* next;
  const void* const* end;

  void request(int64_t count) {
    for (; count > 0 && next != end; --count) prefetch(*next++);
  }
};

// Rows of K and V that come next, asked for a few lines at a time while something else is computed:
// all at once they would keep the core waiting.
struct RowsAhead {
  const std::byte* keys;
  const std::byte* values;
  int64_t key_stride;  // bytes
  int64_t value_stride;
  int64_t key_lines;  // of a row
  int64_t value_lines;
  int64_t rows;

  int64_t lines() const { return rows * (key_lines + value_lines); }

  // The next `count` lines.
  void request(int64_t count) {
    for (; count > 0 && rows > 0; --count) {
      const int64_t value_line = line - key_lines;
      prefetch(value_line < 0 ? keys + line * 64 : values + value_line * 64);
      if (++line < key_lines + value_lines) continue;
      line = 0;
      keys += key_stride;
      values += value_stride;
      --rows;
    }
  }

  int64_t line;  // of the current row
};

}  // namespace pkv::cpu
