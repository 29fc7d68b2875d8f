#include "tools/interrupt.h"

#include <signal.h>

#include "tools/status.h"

namespace pkv::cli {
namespace {

volatile sig_atomic_t signal_seen = 0;

void note_signal(int number) { signal_seen = number; }

}  // namespace

void watch_signals() {
  struct sigaction action = {};
  action.sa_handler = note_signal;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

absl::Status check_interrupt() {
  return signal_seen == 0 ? absl::OkStatus() : failure(kInterrupted, "interrupted");
}

int interrupt_exit_code() {
  return 128 + (signal_seen == 0 ? SIGINT : static_cast<int>(signal_seen));
}

}  // namespace pkv::cli
