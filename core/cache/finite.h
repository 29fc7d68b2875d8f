// Keys and values that a sequence cannot hold: rows whose squares have no finite sum in fp32.
// docs/algorithm.md, section 3.6. In host memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "pariskv/pariskv_types.h"

namespace pkv {

bool is_bad_row(pkv_dtype dtype, const std::byte* row, int64_t width);

}  // namespace pkv
