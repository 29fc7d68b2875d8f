// How many pages of a pool are allocated at once.
#pragma once

#include <algorithm>
#include <cstdint>

namespace pkv {

// Drivers lock less than 512 GiB at once.
inline constexpr int64_t kMostChunkBytes = int64_t{256} << 30;

// Of the next chunk, when `missing` pages are: whole pages, so that no row lies in two chunks.
constexpr int64_t chunk_pages(int64_t missing, int64_t page_bytes) {
  return std::min(missing, std::max<int64_t>(1, kMostChunkBytes / page_bytes));
}

}  // namespace pkv
