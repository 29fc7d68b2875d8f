// Small arrays that the host writes and the device reads: starts, counts, lengths of a call. A
// ring, so that arrays of enqueued work stay as they are until the ring has gone round, which
// waits. A call takes all that it needs at once.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/status.h"
#include "core/runtime/buffer.h"
#include "core/runtime/device.h"
#include "core/runtime/stream.h"

namespace pkv {

class HostNumbers {
 public:
  // `identity`: so many numbers 0, 1, .. as int32. `heads`, `page_tokens`: of the patterns.
  static absl::StatusOr<HostNumbers> create(std::shared_ptr<const Device> device, int64_t identity,
                                            int64_t heads, int64_t page_tokens) {
    HostNumbers numbers;
    const auto make = [&](int64_t bytes) { return Buffer::create(device, PKV_MEMORY_HOST, bytes); };
    PKV_ASSIGN_OR_RETURN(numbers.identity_, make(identity * int64_t{sizeof(int32_t)}));
    PKV_ASSIGN_OR_RETURN(numbers.zeros_, make(heads * int64_t{sizeof(int32_t)}));
    PKV_ASSIGN_OR_RETURN(numbers.pages_, make(heads * page_tokens * int64_t{sizeof(int32_t)}));
    PKV_ASSIGN_OR_RETURN(numbers.ring_, make(kRingBytes));
    std::iota(numbers.identity(), numbers.identity() + identity, 0);
    std::fill_n(numbers.zeros_.as<int32_t>(), heads, 0);
    for (int64_t head = 0; head < heads; ++head) {
      int32_t* row = numbers.pages_.as<int32_t>() + head * page_tokens;
      std::iota(row, row + page_tokens, 0);
    }
    return numbers;
  }

  int32_t* identity() const { return identity_.as<int32_t>(); }
  const int32_t* zeros() const { return zeros_.as<int32_t>(); }  // [heads]
  const int32_t* page_rows() const {
    return pages_.as<int32_t>();
  }  // [heads, page_tokens] 0, 1, ..
  int64_t bytes() const {
    return identity_.bytes() + zeros_.bytes() + pages_.bytes() + ring_.bytes();
  }

  static int64_t bytes_for(int64_t identity, int64_t heads, int64_t page_tokens) {
    return (identity + heads + heads * page_tokens) * int64_t{sizeof(int32_t)} + kRingBytes;
  }

  // Room for numbers to be written now, aligned to 8.
  absl::StatusOr<std::byte*> take(const Stream& stream, int64_t bytes) {
    bytes = (bytes + 7) / 8 * 8;
    if (next_ + bytes > ring_.bytes()) {
      PKV_RETURN_IF_ERROR(stream.sync());
      next_ = 0;
      PKV_RETURN_IF_ERROR(reserve(stream, bytes));
    }
    std::byte* numbers = ring_.as<std::byte>() + next_;
    next_ += bytes;
    return numbers;
  }
  // The ring holds arrays of so many bytes. Nothing enqueued reads it.
  absl::Status reserve(const Stream& stream, int64_t bytes) {
    if (bytes <= ring_.bytes()) return absl::OkStatus();
    PKV_ASSIGN_OR_RETURN(ring_, Buffer::create(stream.device(), PKV_MEMORY_HOST, 2 * bytes));
    next_ = 0;
    return absl::OkStatus();
  }

 private:
  static constexpr int64_t kRingBytes = 1 << 16;
  HostNumbers() = default;

  Buffer identity_;
  Buffer zeros_;
  Buffer pages_;
  Buffer ring_;
  int64_t next_ = 0;
};

}  // namespace pkv
