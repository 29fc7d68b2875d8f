// K or V vectors of one KV head: rows of a tensor view, or rows in pages.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "backends/cpu/tensor.h"
#include "core/format/pages.h"
#include "pariskv/pariskv_backend.h"

namespace pkv::cpu {

// Tokens whose rows lie `stride` bytes apart.
struct TokenRun {
  const std::byte* first;
  int64_t stride;
  int64_t count;
};

class TokenRows {
 public:
  // None.
  TokenRows() = default;

  // Of (leading, kv_head) of a view [.., h, t, width], or of sequence `leading` in pages.
  TokenRows(const pkv_tensor& view, const pkv_pages& pages, int64_t leading, int32_t kv_head)
      : dtype_(view.dtype), bytes_(view.shape[3] * dtype_bytes(view.dtype)) {
    if (pages.table != nullptr) {
      pages_ = format::token_pages(pages, leading, kv_head);
      stride_ = pages_.token_bytes;
    } else {
      base_ = row_at(view, leading, kv_head, int64_t{0});
      stride_ = stride_of(view, 2) * dtype_bytes(view.dtype);
    }
  }

  const std::byte* at(int64_t token) const {
    return base_ != nullptr ? base_ + token * stride_ : pages_.at(token);
  }
  // From `token` to the end of its page.
  TokenRun run(int64_t token) const {
    if (base_ != nullptr) {
      return {base_ + token * stride_, stride_, std::numeric_limits<int64_t>::max()};
    }
    return {pages_.at(token), stride_, pages_.page_end(token) - token};
  }

  pkv_dtype dtype() const { return dtype_; }
  int64_t bytes() const { return bytes_; }  // of a row
  int64_t lines() const { return (bytes_ + 63) / 64; }

 private:
  const std::byte* base_ = nullptr;  // NULL: in pages
  format::TokenPages pages_{};
  int64_t stride_ = 0;
  pkv_dtype dtype_ = 0;
  int64_t bytes_ = 0;
};

}  // namespace pkv::cpu
