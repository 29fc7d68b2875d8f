// Shared by the files behind pariskv_cache.h.
#pragma once

#include "pariskv/pariskv_cache.h"

namespace pkv {

// What pkv_cache_desc_init fills in.
pkv_cache_desc default_cache_desc();

}  // namespace pkv
