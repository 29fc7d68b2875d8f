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

absl::Status QueryLog::write(const Stream& stream, PagePool& pool, int64_t position,
                             const TensorView& queries, int64_t token, int64_t count) {
  for (int64_t done = 0; done < count;) {
    const int64_t at = position + done;
    const int64_t some = std::min(count - done, kBlock - at % kBlock);
    PKV_RETURN_IF_ERROR(write_in_block(stream, pool, at, queries, token + done, some));
    done += some;
  }
  return absl::OkStatus();
}

// In as few copies as the strides allow: on a device each takes longer than its bytes.
absl::Status QueryLog::write_in_block(const Stream& stream, PagePool& pool, int64_t position,
                                      const TensorView& queries, int64_t token, int64_t count) {
  Block& block = blocks_[position / kBlock];
  if (!block.page || block.page.is_shared()) {
    std::vector<PageRef> fresh;
    if (const absl::Status taken = pool.take(1, fresh); !taken.ok()) {
      if (!block.page) blocks_.erase(position / kBlock);
      return taken;
    }
    if (block.page) {
      PKV_RETURN_IF_ERROR(stream.copy(fresh.front().data(), block.page.data(), pool.page_bytes()));
    }
    block.page = std::move(fresh.front());
  }
  const int64_t heads = queries.extent(1);
  const int64_t head_bytes = queries.extent(2) * queries.element_bytes();
  auto* to = static_cast<std::byte*>(block.page.data()) + position % kBlock * heads * head_bytes;
  const auto* from = static_cast<const std::byte*>(queries.origin());
  const bool is_packed = heads == 1 || queries.stride(1) == queries.extent(2);
  const bool is_dense = is_packed && (count == 1 || queries.stride(0) == heads * queries.extent(2));
  const int64_t tokens = is_dense ? 1 : count;
  const int64_t pieces = is_packed ? 1 : heads;
  const int64_t bytes = (is_dense ? count : 1) * (is_packed ? heads : 1) * head_bytes;
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t head = 0; head < pieces; ++head) {
      PKV_RETURN_IF_ERROR(stream.copy(
          to + (t * heads + head) * head_bytes,
          from + queries.element_offset(token + t, head, 0) * queries.element_bytes(), bytes));
    }
  }
  block.present |= bits(position - position % kBlock, position, position + count);
  return absl::OkStatus();
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
