// Pages of one size, taken from the backend in chunks, shared by reference count.
// Not here: which page holds what (layer.h), what a device reads (page_table.h).
// Used under the cache's lock, by one thread at a time.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/runtime/buffer.h"
#include "core/runtime/device.h"

namespace pkv {

class PagePool;

// What all pools of a cache may hold together.
struct PageBudget {
  int64_t limit = INT64_MAX;
  int64_t used = 0;
};

// One use of a page. Copies share it; the last one gives it back.
class PageRef {
 public:
  PageRef() = default;
  PageRef(const PageRef& other) : page_(other.page_) { add(); }
  PageRef(PageRef&& other) noexcept : page_(std::exchange(other.page_, nullptr)) {}
  PageRef& operator=(PageRef other) noexcept {
    std::swap(page_, other.page_);
    return *this;
  }
  ~PageRef() { drop(); }

  explicit operator bool() const { return page_ != nullptr; }
  void* data() const { return page_->data; }
  bool is_shared() const { return page_->uses > 1; }

 private:
  friend class PagePool;
  struct Page {
    PagePool* pool;
    void* data;
    int32_t uses;
  };
  explicit PageRef(Page* page) : page_(page) { add(); }
  void add();
  void drop();

  Page* page_ = nullptr;
};

class PagePool {
 public:
  // `kind`: PKV_MEMORY_*. The budget outlives the pool.
  PagePool(std::shared_ptr<const Device> device, int32_t kind, int64_t page_bytes,
           std::string_view name, PageBudget* budget)
      : device_(std::move(device)),
        kind_(kind),
        page_bytes_(page_bytes),
        name_(name),
        budget_(budget) {}
  PagePool(const PagePool&) = delete;
  PagePool& operator=(const PagePool&) = delete;

  // RESOURCE_EXHAUSTED: the budget, or memory. Takes all or none, behind what `out` holds.
  absl::Status take(int64_t count, std::vector<PageRef>& out);
  // So many pages can be taken without going to the backend.
  absl::Status reserve(int64_t count);

  // Pages given back while holding are not handed out before release().
  void hold(bool holds) { is_holding_ = holds; }
  bool is_holding() const { return is_holding_; }
  void release() {
    free_.insert(free_.end(), held_.begin(), held_.end());
    held_.clear();
  }

  int64_t page_bytes() const { return page_bytes_; }
  int64_t used() const { return used_; }      // pages
  int64_t shared() const { return shared_; }  // of them, with more than one use
  int64_t allocated_bytes() const { return static_cast<int64_t>(pages_.size()) * page_bytes_; }

 private:
  friend class PageRef;
  absl::Status add_chunk(int64_t pages);

  std::shared_ptr<const Device> device_;
  int32_t kind_;
  int64_t page_bytes_;
  std::string_view name_;
  PageBudget* budget_;
  std::vector<Buffer> chunks_;
  std::deque<PageRef::Page> pages_;
  std::vector<PageRef::Page*> free_;
  std::vector<PageRef::Page*> held_;
  bool is_holding_ = false;
  int64_t used_ = 0;
  int64_t shared_ = 0;
};

}  // namespace pkv
