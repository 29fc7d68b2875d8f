// What the program's heap has given out.
#pragma once

#if defined(__linux__)
#include <malloc.h>
#endif

#include <cstddef>

namespace pkv::cache_model {

// 0 where the C library does not tell.
inline std::size_t heap_bytes() {
#if defined(__GLIBC__)
  const struct mallinfo2 info = mallinfo2();
  return info.uordblks + info.hblkhd;
#else
  return 0;
#endif
}

}  // namespace pkv::cache_model
