// Which instruction set a device's kernels use. A file with kernels is compiled once per set
// (hwy/foreach_target.h), names its entry by HWY_EXPORT(Function), and calls
//   PKV_CPU_DISPATCH(device->isa, Function)(arguments);
// so that the choice belongs to a device, not to the process as with HWY_DYNAMIC_DISPATCH.
// docs/numerics.md, section 2: exact results do not depend on it.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "hwy/targets.h"
#include "pariskv/pariskv_backend.hpp"

namespace pkv::cpu {

// What PKV_CPU_DISPATCH is called with: paths_test.py holds the list against the sources.
inline constexpr const char* kKernels[] = {
    "add_values_simd",     "add_votes_impl",     "attend_block_impl", "bound_of_rank_impl",
    "cap_all_impl",        "encode_piece_simd",  "entry_order_impl",  "estimate_impl",
    "exp_all_impl",        "fit_keys_impl",      "keep_best_impl",    "largest_impl",
    "log_sum_exp_impl",    "sample_votes_impl",  "scale_all_impl",    "scan_range_impl",
    "score_by_group_impl", "score_by_mean_impl", "sum_sketches_impl", "vector_floats_impl",
    "vote_range_impl"};
inline constinit backend::Paths kernels(kKernels);

class Isa {
 public:
  // The best that the host has.
  Isa() { set("best"); }

  // Whether the library has any code that this host can run.
  static bool is_any();
  // What the host can run, best first: "avx3, avx2, sse4".
  static std::string names();

  // "best" or one of names(); false, and nothing changed, if it is neither.
  bool set(std::string_view name);
  std::size_t index() const { return chosen_.GetIndex(); }

 private:
  hwy::ChosenTarget chosen_;
};

}  // namespace pkv::cpu

#if (HWY_TARGETS & (HWY_TARGETS - 1)) == 0
#define PKV_CPU_DISPATCH(isa, FUNCTION) \
  (::pkv::cpu::kernels.note(#FUNCTION), static_cast<void>(isa), HWY_STATIC_DISPATCH(FUNCTION))
#else
#define PKV_CPU_DISPATCH(isa, FUNCTION) \
  (::pkv::cpu::kernels.note(#FUNCTION), *HWY_DISPATCH_TABLE(FUNCTION)[(isa).index()])
#endif
