// Device memory for one operation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "core/base/checked.h"
#include "core/base/status.h"
#include "core/runtime/buffer.h"
#include "core/runtime/stream.h"

namespace pkv {

// Pieces of few buffers, as an allocation takes a device longer than many a kernel. Given back
// together at the end, which waits for the stream, as work that was enqueued may use them.
class Temporaries {
 public:
  // `expected`: bytes of the first buffer, within limits that a larger piece exceeds.
  explicit Temporaries(const Stream& stream, int64_t expected = 0)
      : stream_(stream), expected_(expected) {}
  ~Temporaries() {
    if (!buffers_.empty()) stream_.wait();
  }
  Temporaries(const Temporaries&) = delete;
  Temporaries& operator=(const Temporaries&) = delete;

  // Aligned to 256, contents undefined. bytes = 0: NULL. RESOURCE_EXHAUSTED.
  absl::StatusOr<std::byte*> take(int64_t bytes);
  // For work that is enqueued next: what is taken or lent then may be the same memory.
  absl::StatusOr<std::byte*> lend(int64_t bytes);
  // So many numbers; `what` names them where the product of the extents is too large.
  template <class Number>
  absl::StatusOr<Number*> take(std::string_view what, std::initializer_list<Named> extents) {
    PKV_ASSIGN_OR_RETURN(const int64_t count, checked_product(what, extents));
    PKV_ASSIGN_OR_RETURN(
        const int64_t bytes,
        checked_product(what, {{"numbers", count}, {"bytes", int64_t{sizeof(Number)}}}));
    PKV_ASSIGN_OR_RETURN(std::byte * data, take(bytes));
    return reinterpret_cast<Number*>(data);
  }

 private:
  const Stream& stream_;
  const int64_t expected_;
  std::vector<Buffer> buffers_;
  int64_t used_ = 0;  // of the last buffer
  int64_t total_ = 0;
};

}  // namespace pkv
