#include "core/cache/page_pool.h"

#include <algorithm>
#include <cstddef>

#include "core/base/status.h"
#include "core/base/text.h"
#include "core/cache/page_chunks.h"

namespace pkv {
namespace {

constexpr int64_t kChunkBytes = 8 << 20;
constexpr int64_t kMostChunkPages = 64;

}  // namespace

void PageRef::add() {
  if (page_ == nullptr) return;
  if (++page_->uses == 2) ++page_->pool->shared_;
}

void PageRef::drop() {
  if (page_ == nullptr) return;
  PagePool& pool = *page_->pool;
  if (--page_->uses == 1) --pool.shared_;
  if (page_->uses > 0) return;
  (pool.is_holding_ ? pool.held_ : pool.free_).push_back(page_);  // has room: add_chunk made it
  --pool.used_;
  pool.budget_->used -= pool.page_bytes_;
}

absl::Status PagePool::add_chunk(int64_t pages) {
  PKV_ASSIGN_OR_RETURN(Buffer chunk, Buffer::create(device_, kind_, pages * page_bytes_));
  const auto all = pages_.size() + static_cast<std::size_t>(pages);
  free_.reserve(all);
  held_.reserve(all);
  chunks_.reserve(chunks_.size() + 1);
  const std::size_t before = pages_.size();
  pages_.resize(all);
  for (std::size_t i = before; i < all; ++i) {
    pages_[i] = {this, chunk.as<std::byte>() + static_cast<int64_t>(i - before) * page_bytes_, 0};
    free_.push_back(&pages_[i]);
  }
  chunks_.push_back(std::move(chunk));
  return absl::OkStatus();
}

absl::Status PagePool::reserve(int64_t count) {
  const int64_t missing = count - static_cast<int64_t>(free_.size());
  if (missing <= 0) return absl::OkStatus();
  const int64_t usual = std::clamp<int64_t>(kChunkBytes / page_bytes_, 1, kMostChunkPages);
  if (missing <= usual && add_chunk(usual).ok()) return absl::OkStatus();
  const std::size_t chunks = chunks_.size();
  const std::size_t pages = pages_.size();
  const std::size_t free = free_.size();
  for (int64_t left = missing; left > 0;) {
    const int64_t next = chunk_pages(left, page_bytes_);
    const absl::Status added = add_chunk(next);
    if (!added.ok()) {
      chunks_.resize(chunks);
      pages_.resize(pages);
      free_.resize(free);
      if (!absl::IsResourceExhausted(added)) return added;
      return absl::ResourceExhaustedError(str_cat(to_std(added.message()), ", of ", missing,
                                                  " pages of ", page_bytes_, " bytes for ", name_,
                                                  " (max_bytes bounds them)"));
    }
    left -= next;
  }
  return absl::OkStatus();
}

absl::Status PagePool::take(int64_t count, std::vector<PageRef>& out) {
  if (count <= 0) return absl::OkStatus();
  const int64_t room = (budget_->limit - budget_->used) / page_bytes_;
  if (count > room) {
    return absl::ResourceExhaustedError(
        str_cat("needs ", count, " pages of ", page_bytes_, " bytes for ", name_, ", has room for ",
                room, " (max_bytes=", budget_->limit, ", held ", budget_->used, ")"));
  }
  PKV_RETURN_IF_ERROR(reserve(count));
  out.reserve(out.size() + static_cast<std::size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    out.push_back(PageRef(free_.back()));
    free_.pop_back();
  }
  used_ += count;
  budget_->used += count * page_bytes_;
  return absl::OkStatus();
}

}  // namespace pkv
