// The fold of one subspace: f(0), .., f(7). docs/algorithm.md, section 0.
#pragma once

#include "core/format/fold.h"

namespace pkv::cpu_ref {

// Room for 16: with 8, GCC 12 warns of a write behind the array that never happens.
template <class Function>
float fold8(Function f) {
  return format::fold_each<16>(8, f);
}

}  // namespace pkv::cpu_ref
