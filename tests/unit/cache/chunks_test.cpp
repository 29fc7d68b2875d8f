// Host stores of any size are locked in chunks that a driver takes.
#include <cstdint>
#include <vector>

#include "core/cache/page_chunks.h"
#include "doctest/doctest.h"

namespace pkv::test {
namespace {

TEST_CASE("chunks: 600e9 bytes are locked in pieces below 512 GiB, whole pages, none twice") {
  for (const int64_t page_bytes : {int64_t{4096}, int64_t{3 * 1152 * 130}, int64_t{2} << 20,
                                   (int64_t{1} << 38) + 64, int64_t{300} << 30}) {
    CAPTURE(page_bytes);
    const int64_t pages = int64_t{600'000'000'000} / page_bytes + 1;
    std::vector<int64_t> chunks;
    int64_t held = 0;
    while (held < pages && chunks.size() < 1000) {
      chunks.push_back(chunk_pages(pages - held, page_bytes));
      CHECK(chunks.back() > 0);
      CHECK(chunks.back() * page_bytes < int64_t{512} << 30);
      held += chunks.back();
    }
    CHECK(held == pages);
    CHECK(chunks.size() >= 2);
    CHECK(chunks.size() <= 4);
  }
  CHECK(chunk_pages(5, 4096) == 5);
  CHECK(chunk_pages(int64_t{1} << 26, 4096) == int64_t{1} << 26);
  CHECK(chunk_pages((int64_t{1} << 26) + 1, 4096) == int64_t{1} << 26);
}

}  // namespace
}  // namespace pkv::test
