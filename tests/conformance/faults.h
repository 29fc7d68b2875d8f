// What a backend does when memory runs out and when a kernel fails: it says so, and nothing hangs.
#pragma once

#include "tests/conformance/options.h"

namespace pkv::conformance {

// Each fault in a process of its own, since one may take the device with it; prints a line for
// each.
// Has to be called before anything else has opened a device. Returns how many went wrong.
int run_faults(const Options& options);

}  // namespace pkv::conformance
