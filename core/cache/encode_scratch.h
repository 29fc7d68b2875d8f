// Two small answers about a cache's codec.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/cache/shape.h"

namespace pkv {

// Scratch of encode for the tokens of one page. UNIMPLEMENTED: the backend does not encode the
// cache's dtype.
absl::StatusOr<int64_t> encode_scratch_bytes(const CacheShape& shape);
// INVALID_ARGUMENT names the first field in which a codec differs from the cache's options.
absl::Status check_same_geometry(const pkv_geometry& codec, const pkv_geometry& cache);

}  // namespace pkv
