// Where the tail takes its samples. docs/algorithm.md, section 6.4.
#include "core/format/samples.h"

#include <doctest/doctest.h>

#include <cstdint>
#include <initializer_list>

#include "core/format/records.h"

namespace pkv::format {
namespace {

pkv_geometry with_stride(int32_t stride) {
  pkv_geometry g{};
  g.sketch_bits = stride == 0 ? 0 : 4;
  g.sketch_stride = stride;
  return g;
}

// Every sample has a sketch, all differ and ascend, and they spread evenly: c samples of m steps
// are floor(m / c) or one more steps apart.
void check_positions(int64_t n, int32_t stride, int32_t most) {
  CAPTURE(n);
  CAPTURE(stride);
  CAPTURE(most);
  const int64_t p = stride == 0 ? 1 : stride;
  const int64_t m = n == 0 ? 0 : 1 + (n - 1) / p;
  const int64_t c = m < most ? m : most;
  const Samples s = samples(with_stride(stride), n, most);
  REQUIRE(s.count == c);
  CHECK(s.is_all() == (p == 1 && n <= most));
  if (c == 0) return;
  REQUIRE(s.position(0) == 0);
  int64_t before = 0;
  for (int64_t i = 1; i < c; ++i) {
    const int64_t position = s.position(i);
    const int64_t apart = (position - before) / p;
    const bool is_right = position % p == 0 && apart >= m / c && apart <= m / c + 1;
    if (!is_right) FAIL("sample ", i, " is position ", position, " after ", before);
    before = position;
  }
  REQUIRE(before < n);
  CHECK(m - before / p <= m / c + 1);  // nor is the end left out
}

TEST_CASE("samples: distinct, ascending, in range, multiples of the stride, evenly spread") {
  for (const int32_t stride : {0, 1, 2, 16, 4096, kMaxSketchStride}) {
    for (const int32_t most : {1, 2, 7, 512}) {
      for (int64_t n = 0; n <= 70; ++n) check_positions(n, stride, most);
      for (int64_t n = 71; n <= 5000; n += 37) check_positions(n, stride, most);
      for (const int64_t n : {511, 512, 513, 4096, 8191, 8192, 8193}) {
        check_positions(n, stride, most);
      }
    }
    for (const int32_t most : {1, 512, 65535, kMaxTailSamples}) {
      check_positions(kMaxTokens, stride, most);
      check_positions(kMaxTokens - 1, stride, most);
    }
  }
}

TEST_CASE("samples: every key while there are no more than T") {
  for (const int64_t n : {1, 5, 512}) {
    const Samples s = samples(with_stride(1), n, 512);
    for (int64_t i = 0; i < n; ++i) CHECK(s.position(i) == i);
  }
}

TEST_CASE("samples: floor(i m / c) steps") {
  const Samples s = samples(with_stride(16), 100, 3);  // m = 7: 0, floor(7/3), floor(14/3)
  REQUIRE(s.count == 3);
  CHECK(s.position(0) == 0);
  CHECK(s.position(1) == 2 * 16);
  CHECK(s.position(2) == 4 * 16);
}

}  // namespace
}  // namespace pkv::format
