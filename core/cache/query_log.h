// Queries kept for fits: those of positions that lie in some fit's sample. In blocks of 64
// positions, shared between forks until one writes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/cache/page_pool.h"
#include "core/runtime/stream.h"

namespace pkv {

class QueryLog {
 public:
  static constexpr int64_t kBlock = 64;

  // Copies queries [begin, begin + count) of those that are written, at most a block of them, to
  // `to` [count, hq, d].
  using Copy = absl::FunctionRef<absl::Status(std::byte* to, int64_t begin, int64_t count)>;
  // `count` queries, those of `position` and what follows. The pool's pages hold a block of
  // queries of `query_bytes` each.
  absl::Status write(const Stream& stream, PagePool& pool, int64_t query_bytes, int64_t position,
                     int64_t count, Copy copy);
  // Forgets positions from `tokens` on.
  void truncate(int64_t tokens);

  // Of positions [begin, end): how many are kept, and their queries, ascending, as [m, hq, d].
  int64_t count(int64_t begin, int64_t end) const;
  absl::Status gather(const Stream& stream, int64_t query_bytes, int64_t begin, int64_t end,
                      void* out) const;
  // Calls body(position, data) for each that is kept.
  template <class Body>
  void for_each(int64_t query_bytes, Body body) const {
    for (const auto& [number, block] : blocks_) {
      for (int64_t i = 0; i < kBlock; ++i) {
        if ((block.present >> i & 1) == 0) continue;
        body(number * kBlock + i, static_cast<std::byte*>(block.page.data()) + i * query_bytes);
      }
    }
  }
  bool is_empty() const { return blocks_.empty(); }

 private:
  struct Block {
    PageRef page;
    uint64_t present = 0;  // bit i: position kBlock * number + i
  };
  absl::StatusOr<Block*> block_to_write(const Stream& stream, PagePool& pool, int64_t number);

  std::map<int64_t, Block> blocks_;  // by number
};

}  // namespace pkv
