#include "core/runtime/row_bytes.h"

#include "core/base/checked.h"
#include "core/base/status.h"
#include "core/base/text.h"

namespace pkv {

absl::StatusOr<int64_t> store_row_bytes(const Device& device, const pkv_geometry& geometry,
                                        int64_t capacity) {
  int64_t bytes = 0;
  PKV_RETURN_IF_ERROR(device.call("store_row_bytes", device.backend().store_row_bytes, &geometry,
                                  capacity, &bytes));
  if (bytes % kAlignment == 0 && bytes >= (capacity > 0 ? kAlignment : 0)) return bytes;
  return absl::InternalError(str_cat("the backend's store_row_bytes=", bytes, " for capacity=",
                                     capacity, ", accepted: multiples of ", kAlignment));
}

}  // namespace pkv
