// Where records and K/V lie: pkv_store and pkv_pages of pariskv_backend.h.
#include "core/format/pages.h"

#include <doctest/doctest.h>

#include <array>
#include <cstdint>

#include "core/format/codec_sets.h"
#include "core/format/records.h"

namespace pkv::format {
namespace {

TEST_CASE("pages: a store in one piece is one piece per row") {
  std::array<std::byte, 4096> memory{};
  pkv_store store{};
  store.base = memory.data();
  store.row_bytes = 256;
  store.capacity = 70;
  const StoreRow row = store_row(store, 3, 2, 1);
  for (const int64_t position : {0, 1, 63, 64, 69}) {
    CHECK(row.piece(position) == memory.data() + (2 * 3 + 1) * 256);
    CHECK(row.local(position) == position);
    CHECK(row.piece_end(position) == INT64_MAX);
  }
  CHECK(row.local(kMaxTokens) == kMaxTokens);
}

TEST_CASE("pages: of a store, a position's page and its place there") {
  std::array<std::byte, 8192> memory{};
  const std::array<void*, 8> pages = {nullptr,      nullptr,    nullptr,      nullptr,
                                      &memory[512], &memory[0], &memory[512], nullptr};
  pkv_store store{};
  store.row_bytes = 256;
  store.capacity = 64;
  store.pages = pages.data();
  store.pages_stride = 4;
  const StoreRow row = store_row(store, 2, 1, 1);
  struct Expected {
    int64_t position;
    int64_t piece;
    int64_t local;
    int64_t end;
  };
  for (const auto& [position, piece, local, end] :
       {Expected{0, 768, 0, 64}, Expected{63, 768, 63, 64}, Expected{64, 256, 0, 128},
        Expected{127, 256, 63, 128}, Expected{128, 768, 0, 192}, Expected{130, 768, 2, 192}}) {
    CAPTURE(position);
    CHECK(row.piece(position) == memory.data() + piece);
    CHECK(row.local(position) == local);
    CHECK(row.piece_end(position) == end);
  }
}

TEST_CASE("pages: of K/V, any number of tokens and strides of any sign") {
  std::array<std::byte, 8192> memory{};
  const std::array<const void*, 6> table = {nullptr, nullptr, nullptr, &memory[4000], &memory[100]};
  for (const int64_t page_tokens : {1, 3, 16, 100}) {
    for (const int64_t token_bytes : {8, -8}) {
      CAPTURE(page_tokens);
      CAPTURE(token_bytes);
      pkv_pages pages{};
      pages.table = table.data();
      pages.table_stride = 3;
      pages.page_tokens = page_tokens;
      pages.head_bytes = -24;
      pages.token_bytes = token_bytes;
      pages.offset = 1000;
      const TokenPages view = token_pages(pages, 1, 2);
      const std::byte* first = memory.data() + 4000 + 1000 - 48;
      const std::byte* second = memory.data() + 100 + 1000 - 48;
      CHECK(view.at(0) == first);
      CHECK(view.at(page_tokens - 1) == first + (page_tokens - 1) * token_bytes);
      CHECK(view.at(page_tokens) == second);
      CHECK(view.at(2 * page_tokens - 1) == second + (page_tokens - 1) * token_bytes);
      CHECK(view.page_end(0) == page_tokens);
      CHECK(view.page_end(page_tokens - 1) == page_tokens);
      CHECK(view.page_end(page_tokens) == 2 * page_tokens);
    }
  }
}

TEST_CASE("codec sets: an entry's parameters are those of its set, the first without any") {
  const std::array<float, 24> numbers{};
  const std::array<int32_t, 3> set_of = {2, 0, 1};
  pkv_geometry geometry{};
  geometry.kv_heads = 2;
  pkv_codec_params codec{};
  codec.geometry = &geometry;
  CHECK(codec_row(codec, numbers.data(), 1, 1, 4) == numbers.data() + 4);
  codec.set_of = set_of.data();
  CHECK(codec_row(codec, numbers.data(), 0, 1, 4) == numbers.data() + 20);
  CHECK(codec_row(codec, numbers.data(), 1, 0, 4) == numbers.data());
  CHECK(codec_row(codec, numbers.data(), 2, 0, 4) == numbers.data() + 8);
}

}  // namespace
}  // namespace pkv::format
