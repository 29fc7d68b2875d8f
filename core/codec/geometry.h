// Which geometries there are: the check that everything built from one relies on.
// docs/algorithm.md, sections 1 and 9. Sizes of the records: core/format/records.h.
#pragma once

#include "absl/status/status.h"
#include "pariskv/pariskv_types.h"

namespace pkv {

// INVALID_ARGUMENT for the first field that is not accepted:
// "head_dim=12, accepted: a multiple of 8 from 8 to 576".
absl::Status check_geometry(const pkv_geometry& geometry);

}  // namespace pkv
