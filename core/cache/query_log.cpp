#include "core/cache/query_log.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <iterator>
#include <utility>
#include <vector>

#include "core/base/status.h"

namespace pkv {
namespace {

constexpr uint64_t bit(int64_t position) { return uint64_t{1} << (position % QueryLog::kBlock); }

// Bits of positions [begin, end) of the block that begins at `first`; the range meets it.
constexpr uint64_t bits(int64_t first, int64_t begin, int64_t end) {
  uint64_t found = ~uint64_t{0};
  if (begin > first) found &= ~(bit(begin) - 1);
  if (end - first < QueryLog::kBlock) found &= bit(end) - 1;
  return found;
}

}  // namespace

absl::Status QueryLog::write(const Stream& stream, PagePool& pool, int64_t query_bytes,
                             int64_t position, int64_t count, Copy copy) {
  for (int64_t done = 0; done < count;) {
    const int64_t at = position + done;
    const int64_t in_block = at % kBlock;
    const int64_t some = std::min(count - done, kBlock - in_block);
    PKV_ASSIGN_OR_RETURN(Block * block, block_to_write(stream, pool, at / kBlock));
    PKV_RETURN_IF_ERROR(
        copy(static_cast<std::byte*>(block->page.data()) + in_block * query_bytes, done, some));
    block->present |= bits(at - in_block, at, at + some);
    done += some;
  }
  return absl::OkStatus();
}

// With a page of its own.
absl::StatusOr<QueryLog::Block*> QueryLog::block_to_write(const Stream& stream, PagePool& pool,
                                                          int64_t number) {
  Block& block = blocks_[number];
  if (block.page && !block.page.is_shared()) return &block;
  std::vector<PageRef> fresh;
  if (const absl::Status taken = pool.take(1, fresh); !taken.ok()) {
    if (!block.page) blocks_.erase(number);
    return taken;
  }
  if (block.page) {
    PKV_RETURN_IF_ERROR(stream.copy(fresh.front().data(), block.page.data(), pool.page_bytes()));
  }
  block.page = std::move(fresh.front());
  return &block;
}

void QueryLog::truncate(int64_t tokens) {
  blocks_.erase(blocks_.lower_bound((tokens + kBlock - 1) / kBlock), blocks_.end());
  if (blocks_.empty() || tokens % kBlock == 0) return;
  const auto last = std::prev(blocks_.end());
  if (last->first != tokens / kBlock) return;
  last->second.present &= bit(tokens) - 1;
  if (last->second.present == 0) blocks_.erase(last);
}

int64_t QueryLog::count(int64_t begin, int64_t end) const {
  int64_t kept = 0;
  for (auto it = blocks_.lower_bound(begin / kBlock); it != blocks_.end(); ++it) {
    const int64_t first = it->first * kBlock;
    if (first >= end) break;
    kept += std::popcount(it->second.present & bits(first, begin, end));
  }
  return kept;
}

absl::Status QueryLog::gather(const Stream& stream, int64_t query_bytes, int64_t begin, int64_t end,
                              void* out) const {
  auto* to = static_cast<std::byte*>(out);
  for (auto it = blocks_.lower_bound(begin / kBlock); it != blocks_.end(); ++it) {
    const int64_t first = it->first * kBlock;
    if (first >= end) break;
    const auto* queries = static_cast<const std::byte*>(it->second.page.data());
    uint64_t wanted = it->second.present & bits(first, begin, end);
    while (wanted != 0) {  // a run of positions at a time
      const int run_begin = std::countr_zero(wanted);
      const int run = std::countr_one(wanted >> run_begin);
      PKV_RETURN_IF_ERROR(stream.copy(to, queries + run_begin * query_bytes, run * query_bytes));
      to += run * query_bytes;
      wanted = run_begin + run < kBlock ? wanted & (~uint64_t{0} << (run_begin + run)) : 0;
    }
  }
  return absl::OkStatus();
}

}  // namespace pkv
