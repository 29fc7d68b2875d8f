#include "core/runtime/temporaries.h"

#include <algorithm>
#include <utility>

namespace pkv {
namespace {

constexpr int64_t kFirst = 1 << 16;
constexpr int64_t kLargestSurplus = 1 << 24;  // room for pieces to come, at most

}  // namespace

absl::StatusOr<std::byte*> Temporaries::lend(int64_t bytes) {
  if (bytes == 0) return nullptr;
  if (buffers_.empty() || bytes > buffers_.back().bytes() - used_) {
    // As much again as there is: few buffers, and not twice what is needed where that is much.
    const int64_t more = buffers_.empty() ? expected_ : total_;
    const int64_t fresh = std::max(bytes, std::clamp(more, kFirst, kLargestSurplus));
    auto buffer = Buffer::create(stream_.device(), PKV_MEMORY_DEVICE, fresh);
    if (absl::IsResourceExhausted(buffer.status()) && fresh > bytes) {
      buffer = Buffer::create(stream_.device(), PKV_MEMORY_DEVICE, bytes);
    }
    if (!buffer.ok()) return buffer.status();
    total_ += buffer->bytes();
    buffers_.push_back(*std::move(buffer));
    used_ = 0;
  }
  return buffers_.back().as<std::byte>() + used_;
}

absl::StatusOr<std::byte*> Temporaries::take(int64_t bytes) {
  PKV_ASSIGN_OR_RETURN(std::byte* const piece, lend(bytes));
  if (piece != nullptr) used_ = std::min(padded(used_ + bytes), buffers_.back().bytes());
  return piece;
}

}  // namespace pkv
