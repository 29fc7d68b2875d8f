#include "core/cache/page_table.h"

#include <algorithm>
#include <bit>
#include <cstddef>

#include "core/base/status.h"
#include "core/base/text.h"

namespace pkv {

static_assert(sizeof(void*) == sizeof(uint64_t));

int64_t PageTable::stride_for(int64_t entries) {
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(entries, 1))));
}

absl::StatusOr<PageTable> PageTable::create(std::shared_ptr<const Device> device, int32_t sequences,
                                            int64_t stride) {
  const int64_t bytes = int64_t{sequences} * stride * int64_t{sizeof(void*)};
  const bool is_on_device = Words::are_served(*device);
  PKV_ASSIGN_OR_RETURN(
      Buffer buffer,
      Buffer::create(device, is_on_device ? PKV_MEMORY_DEVICE : PKV_MEMORY_HOST, bytes));
  if (!is_on_device) std::fill_n(buffer.as<void*>(), sequences * stride, nullptr);
  return PageTable(std::move(device), sequences, stride, std::move(buffer));
}

absl::Status PageTable::grow(const Stream& stream, Words& words, int64_t entries, bool is_frozen) {
  if (entries <= stride_) return absl::OkStatus();
  if (is_frozen) {
    return absl::FailedPreconditionError(
        str_cat("needs a page table of ", entries, " entries, has room for ", stride_,
                ": captured steps read it (pkv_cache_reserve before they are captured)"));
  }
  PKV_RETURN_IF_ERROR(words.flush(stream));
  PKV_ASSIGN_OR_RETURN(PageTable larger, create(device_, sequences_, stride_for(entries)));
  for (int32_t s = 0; s < sequences_; ++s) {
    void** const to = larger.data() + s * larger.stride_;
    void* const* const from = data() + s * stride_;
    if (is_on_device_) {
      PKV_RETURN_IF_ERROR(stream.copy(to, from, stride_ * int64_t{sizeof(void*)}));
    } else {
      std::copy_n(from, stride_, to);
    }
  }
  if (is_on_device_) PKV_RETURN_IF_ERROR(stream.sync());
  *this = std::move(larger);
  return absl::OkStatus();
}

}  // namespace pkv
