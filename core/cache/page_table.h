// Pages of sequences as the stages read them: [sequences, stride] pointers. pkv_store.pages,
// pkv_pages.table. In device memory, written through Words, where the backend serves these; else in
// host memory that the device reads, written in place.
#pragma once

#include <bit>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/cache/words.h"
#include "core/runtime/buffer.h"
#include "core/runtime/device.h"
#include "core/runtime/stream.h"

namespace pkv {

class PageTable {
 public:
  static absl::StatusOr<PageTable> create(std::shared_ptr<const Device> device, int32_t sequences,
                                          int64_t stride);

  // Room for `entries` of each sequence: the stride doubles until it is enough, and the host waits
  // for the stream. `is_frozen`: FAILED_PRECONDITION instead.
  absl::Status grow(const Stream& stream, Words& words, int64_t entries, bool is_frozen);
  // The stride that `entries` need.
  static int64_t stride_for(int64_t entries);

  // Entry `index` < stride(). In host memory: nothing enqueued reads the table.
  void set(Words& words, int32_t sequence, int64_t index, const void* page) {
    void** entry = data() + sequence * stride_ + index;
    if (is_on_device_) {
      words.set(entry, std::bit_cast<uintptr_t>(page));
    } else {
      *entry = const_cast<void*>(page);
    }
  }
  void** data() const { return buffer_.as<void*>(); }
  int64_t stride() const { return stride_; }
  int64_t bytes() const { return buffer_.bytes(); }

 private:
  PageTable(std::shared_ptr<const Device> device, int32_t sequences, int64_t stride, Buffer buffer)
      : device_(std::move(device)),
        sequences_(sequences),
        stride_(stride),
        buffer_(std::move(buffer)),
        is_on_device_(buffer_.kind() == PKV_MEMORY_DEVICE) {}

  std::shared_ptr<const Device> device_;
  int32_t sequences_;
  int64_t stride_;
  Buffer buffer_;
  bool is_on_device_;
};

}  // namespace pkv
