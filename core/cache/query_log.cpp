#include "core/cache/query_log.h"

#include <bit>
#include <cstddef>
#include <iterator>
#include <utility>
#include <vector>

#include "core/base/status.h"

namespace pkv {
namespace {

constexpr uint64_t bit(int64_t position) { return uint64_t{1} << (position % QueryLog::kBlock); }

}  // namespace

absl::Status QueryLog::write(const Stream& stream, PagePool& pool, int64_t position,
                             const TensorView& queries, int64_t token) {
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
  const int64_t pieces = is_packed ? 1 : heads;
  for (int64_t head = 0; head < pieces; ++head) {
    PKV_RETURN_IF_ERROR(
        stream.copy(to + head * head_bytes,
                    from + queries.element_offset(token, head, 0) * queries.element_bytes(),
                    is_packed ? heads * head_bytes : head_bytes));
  }
  block.present |= bit(position);
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
    uint64_t present = it->second.present;
    if (first < begin) present &= ~(bit(begin) - 1);
    if (end - first < kBlock) present &= bit(end) - 1;
    kept += std::popcount(present);
  }
  return kept;
}

absl::Status QueryLog::gather(const Stream& stream, int64_t query_bytes, int64_t begin, int64_t end,
                              void* out) const {
  auto* to = static_cast<std::byte*>(out);
  absl::Status status;
  for_each(query_bytes, [&](int64_t position, const std::byte* query) {
    if (position < begin || position >= end || !status.ok()) return;
    status = stream.copy(to, query, query_bytes);
    to += query_bytes;
  });
  return status;
}

}  // namespace pkv
