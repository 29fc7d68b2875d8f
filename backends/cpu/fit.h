// Stage fit in runs of keys of one head. docs/algorithm.md, section 2.2.
#pragma once

#include <cstdint>

#include "backends/cpu/isa.h"
#include "backends/cpu/rows.h"

namespace pkv::cpu {

// Sums over a run of keys; the arrays are the caller's.
struct FitSums {
  int64_t count;    // usable keys
  int64_t weight;   // W
  double* sums;     // [d] A
  double* squares;  // [d] B
  double* values;   // [dv]; NULL: not wanted
};

struct FitRun {
  Rows keys;
  Rows values;             // none: first = NULL
  const int32_t* weights;  // [count]; NULL: all 1
  const float* pivot;      // [d] c
  int64_t count;
  int32_t d;
  int32_t dv;  // 0 without values
};

// Overwrites `out`.
void fit_keys(const Isa& isa, const FitRun& run, FitSums& out);

}  // namespace pkv::cpu
