// Ctrl-C and SIGTERM: noted by a handler, obeyed between pieces of work, so that what was begun is
// cleaned up.
#pragma once

#include "absl/status/status.h"

namespace pkv::cli {

void watch_signals();
// CANCELLED once a signal has come.
absl::Status check_interrupt();
// The exit code for the signal that came: 130 for SIGINT, 143 for SIGTERM.
int interrupt_exit_code();

}  // namespace pkv::cli
