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

namespace pkv::cpu {

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
#define PKV_CPU_DISPATCH(isa, FUNCTION) (static_cast<void>(isa), HWY_STATIC_DISPATCH(FUNCTION))
#else
#define PKV_CPU_DISPATCH(isa, FUNCTION) (*HWY_DISPATCH_TABLE(FUNCTION)[(isa).index()])
#endif
