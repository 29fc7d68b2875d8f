// One table for devices of several architectures: each architecture is compiled apart, with sizes
// of its own, and brings a whole table; a call goes to that of its device.
#pragma once

#include <cstdint>
#include <span>

#include "pariskv/pariskv_backend.h"

namespace pkv::hip {

struct Architecture {
  const char* name;  // as gfx90a
  const pkv_backend* table;
};

// Those that this build has code for.
std::span<const Architecture> architectures();

// The architecture of device `ordinal`, as "gfx90a:sramecc+:xnack-"; what the runtime says if it
// cannot tell.
pkv_status name_architecture(const pkv_host* host, int32_t ordinal, char* out, int32_t bytes);

// The one in `all` with the name up to its first ':', or nullptr.
const Architecture* find_architecture(std::span<const Architecture> all, const char* name);

// Slots of `table` that look the device up; everything else is as in architectures()[0].
pkv_backend route(const pkv_backend& first);

}  // namespace pkv::hip
