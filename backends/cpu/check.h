// Refusals that backends on the host share.
#pragma once

#include "backends/host/check.h"

namespace pkv::cpu {

using host::check_floats;
using host::check_geometry;
using host::check_group;
using host::check_logits;
using host::check_range;

}  // namespace pkv::cpu
