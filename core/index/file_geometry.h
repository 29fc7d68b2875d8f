// What section GEOM of a .pkv file says. docs/format.md, section 2.
#pragma once

#include <cstdint>

#include "core/index/file_format.h"
#include "core/plan/config.h"
#include "pariskv/pariskv_types.h"

namespace pkv {

FileGeometry file_geometry(const pkv_geometry& geometry, const CodecOptions& options,
                           int32_t sequences, int64_t capacity);

}  // namespace pkv
