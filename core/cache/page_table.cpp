#include "core/cache/page_table.h"

#include <algorithm>
#include <bit>
#include <cstddef>

#include "core/base/status.h"

namespace pkv {

int64_t PageTable::stride_for(int64_t entries) {
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(entries, 1))));
}

absl::StatusOr<PageTable> PageTable::create(std::shared_ptr<const Device> device, int32_t sequences,
                                            int64_t stride) {
  const int64_t bytes = int64_t{sequences} * stride * int64_t{sizeof(void*)};
  PKV_ASSIGN_OR_RETURN(Buffer buffer, Buffer::create(device, PKV_MEMORY_HOST, bytes));
  std::fill_n(buffer.as<void*>(), sequences * stride, nullptr);
  return PageTable(std::move(device), sequences, stride, std::move(buffer));
}

absl::Status PageTable::grow(int64_t entries) {
  if (entries <= stride_) return absl::OkStatus();
  PKV_ASSIGN_OR_RETURN(PageTable larger, create(device_, sequences_, stride_for(entries)));
  for (int32_t s = 0; s < sequences_; ++s) {
    std::copy_n(data() + s * stride_, stride_, larger.data() + s * larger.stride_);
  }
  *this = std::move(larger);
  return absl::OkStatus();
}

}  // namespace pkv
