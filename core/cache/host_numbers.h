// Small arrays that the host writes and the device reads: starts, counts, lengths of a call. A
// ring. In host memory, arrays of enqueued work stay as they are until the ring has gone round,
// which waits; in device memory, where the backend serves Words, they are written in stream order.
// A call takes all that it needs at once.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/checked.h"
#include "core/base/status.h"
#include "core/cache/words.h"
#include "core/runtime/buffer.h"
#include "core/runtime/device.h"
#include "core/runtime/stream.h"

namespace pkv {

class HostNumbers {
 public:
  // Of the numbers that stay as they are, all int32.
  struct Patterns {
    int64_t identity;  // so many numbers 0, 1, ..
    int64_t heads, page_tokens;
    int64_t query_heads, query_tokens;
  };

  static absl::StatusOr<HostNumbers> create(std::shared_ptr<const Device> device,
                                            const Patterns& patterns) {
    HostNumbers numbers;
    numbers.is_on_device_ = Words::are_served(*device);
    const int32_t kind = numbers.is_on_device_ ? PKV_MEMORY_DEVICE : PKV_MEMORY_HOST;
    const auto make = [&](int64_t bytes) { return Buffer::create(device, kind, bytes); };
    PKV_ASSIGN_OR_RETURN(numbers.ring_, make(kRingBytes));
    PKV_ASSIGN_OR_RETURN(const Stream stream, Stream::create(device));
    std::vector<int32_t> each;
    // 0, 1, .. period - 1, and again
    const auto repeat = [&](Buffer& to, int64_t count, int64_t period) -> absl::Status {
      PKV_ASSIGN_OR_RETURN(to, make(count * int64_t{sizeof(int32_t)}));
      each.resize(static_cast<std::size_t>(count));
      for (int64_t i = 0; i < count; ++i) {
        each[static_cast<std::size_t>(i)] = static_cast<int32_t>(i % period);
      }
      PKV_RETURN_IF_ERROR(stream.copy(to.data(), each.data(), to.bytes()));
      return stream.sync();
    };
    const Patterns& p = patterns;
    PKV_RETURN_IF_ERROR(repeat(numbers.zeros_, p.heads, 1));
    PKV_RETURN_IF_ERROR(repeat(numbers.identity_, p.identity, p.identity));
    PKV_RETURN_IF_ERROR(repeat(numbers.pages_, p.heads * p.page_tokens, p.page_tokens));
    PKV_RETURN_IF_ERROR(repeat(numbers.queries_, p.query_tokens * p.query_heads, p.query_heads));
    PKV_ASSIGN_OR_RETURN(numbers.query_head_count_, make(int64_t{sizeof(int64_t)}));
    PKV_RETURN_IF_ERROR(
        stream.copy(numbers.query_head_count_.data(), &p.query_heads, int64_t{sizeof(int64_t)}));
    PKV_RETURN_IF_ERROR(stream.sync());
    return numbers;
  }

  // For stages to read; each row of pages and of query heads is 0, 1, ..
  int32_t* identity() const { return identity_.as<int32_t>(); }
  const int32_t* zeros() const { return zeros_.as<int32_t>(); }      // [heads]
  const int32_t* page_rows() const { return pages_.as<int32_t>(); }  // [heads, page_tokens]
  // [query_tokens, query_heads]
  const int32_t* query_heads() const { return queries_.as<int32_t>(); }
  const int64_t* query_head_count() const { return query_head_count_.as<int64_t>(); }  // [1]
  int64_t bytes() const {
    return identity_.bytes() + zeros_.bytes() + pages_.bytes() + queries_.bytes() +
           query_head_count_.bytes() + ring_.bytes();
  }

  static int64_t bytes_for(const Patterns& p) {
    const int64_t numbers =
        p.identity + p.heads + p.heads * p.page_tokens + p.query_tokens * p.query_heads;
    return numbers * int64_t{sizeof(int32_t)} + int64_t{sizeof(int64_t)} + kRingBytes;
  }

  // Room for numbers to be written now, aligned to 8. In host memory only.
  absl::StatusOr<std::byte*> take(const Stream& stream, int64_t bytes) {
    bytes = round_up(bytes, 8);
    if (next_ + bytes > ring_.bytes()) {
      PKV_RETURN_IF_ERROR(stream.sync());
      next_ = 0;
      PKV_RETURN_IF_ERROR(reserve(stream, bytes));
    }
    std::byte* numbers = ring_.as<std::byte>() + next_;
    next_ += bytes;
    return numbers;
  }
  // These numbers, as work that is enqueued from now on finds them; int32 in pairs, the first one
  // low.
  absl::StatusOr<const int64_t*> put(const Stream& stream, Words& words,
                                     std::span<const int64_t> numbers) {
    static_assert(std::endian::native == std::endian::little);
    const auto bytes = static_cast<int64_t>(numbers.size_bytes());
    if (!is_on_device_) {
      PKV_ASSIGN_OR_RETURN(std::byte * room, take(stream, bytes));
      std::copy(numbers.begin(), numbers.end(), reinterpret_cast<int64_t*>(room));
      return reinterpret_cast<const int64_t*>(room);
    }
    PKV_RETURN_IF_ERROR(reserve(stream, bytes));
    if (next_ + bytes > ring_.bytes()) next_ = 0;
    auto* room = reinterpret_cast<int64_t*>(ring_.as<std::byte>() + next_);
    next_ += bytes;
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      words.set(room + i, static_cast<uint64_t>(numbers[i]));
    }
    return room;
  }
  // The ring holds arrays of so many bytes; the host waits where it grows.
  absl::Status reserve(const Stream& stream, int64_t bytes) {
    if (bytes <= ring_.bytes()) return absl::OkStatus();
    PKV_RETURN_IF_ERROR(stream.sync());
    PKV_ASSIGN_OR_RETURN(ring_, Buffer::create(stream.device(), ring_.kind(), 2 * bytes));
    next_ = 0;
    return absl::OkStatus();
  }

 private:
  static constexpr int64_t kRingBytes = 1 << 16;
  HostNumbers() = default;

  bool is_on_device_ = false;
  Buffer identity_;
  Buffer zeros_;
  Buffer pages_;
  Buffer queries_;
  Buffer query_head_count_;
  Buffer ring_;
  int64_t next_ = 0;
};

}  // namespace pkv
