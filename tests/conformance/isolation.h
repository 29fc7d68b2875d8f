// Runs cases in child processes, so that a backend that crashes, ends the process or hangs fails a
// case and not the program.
#pragma once

#include <vector>

#include "tests/conformance/runner.h"

namespace pkv::conformance {

// A result for each of `cases`, in order: as run_here has it, or failed because its process ended
// or took longer than Options::time_limit. A process that ends badly behind the last case has a
// result of its own. Throws Unavailable if the places cannot be opened, whatever the reason.
//
// This process opens no backend: a child begins as a copy of one that has no threads and no device.
void run_apart(const Options& options, const std::vector<const Case*>& cases,
               const Observer& observer);

}  // namespace pkv::conformance
