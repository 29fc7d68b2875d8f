// Bytes of a row of key records, as the backend has them, held to the seam's word.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "core/runtime/device.h"

namespace pkv {

// INTERNAL unless it is a multiple of 256, and above 0 for any capacity but 0.
absl::StatusOr<int64_t> store_row_bytes(const Device& device, const pkv_geometry& geometry,
                                        int64_t capacity);

}  // namespace pkv
