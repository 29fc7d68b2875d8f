// The backends that are linked in.
#pragma once

#include <span>

#include "pariskv/pariskv_backend.h"

namespace pkv {

struct Builtin {
  const char* name;  // for texts; the table has the one that counts
  pkv_backend_query_fn query;
};

// In the order of the list of backends.
std::span<const Builtin> builtins();

}  // namespace pkv
