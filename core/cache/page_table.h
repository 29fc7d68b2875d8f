// Pages of sequences as the stages read them: [sequences, stride] pointers in host memory that the
// device reads. pkv_store.pages, pkv_pages.table.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/runtime/buffer.h"
#include "core/runtime/device.h"

namespace pkv {

class PageTable {
 public:
  static absl::StatusOr<PageTable> create(std::shared_ptr<const Device> device, int32_t sequences,
                                          int64_t stride);

  // Room for `entries` of each sequence: the stride doubles until it is enough. Nothing enqueued
  // reads the table meanwhile.
  absl::Status grow(int64_t entries);
  // The stride that `entries` need.
  static int64_t stride_for(int64_t entries);

  // Entry `index` < stride().
  void set(int32_t sequence, int64_t index, const void* page) {
    data()[sequence * stride_ + index] = const_cast<void*>(page);
  }
  void** data() const { return buffer_.as<void*>(); }
  int64_t stride() const { return stride_; }
  int64_t bytes() const { return buffer_.bytes(); }

 private:
  PageTable(std::shared_ptr<const Device> device, int32_t sequences, int64_t stride, Buffer buffer)
      : device_(std::move(device)),
        sequences_(sequences),
        stride_(stride),
        buffer_(std::move(buffer)) {}

  std::shared_ptr<const Device> device_;
  int32_t sequences_;
  int64_t stride_;
  Buffer buffer_;
};

}  // namespace pkv
