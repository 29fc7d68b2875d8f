#include "tools/progress.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

namespace pkv::cli {
namespace {

constexpr auto kInterval = std::chrono::milliseconds(200);
constexpr int kBarWidth = 30;

}  // namespace

Progress::Progress(std::string what, int64_t total)
    : what_(std::move(what)),
      total_(std::max<int64_t>(total, 1)),
      is_terminal_(::isatty(STDERR_FILENO) == 1),
      last_(std::chrono::steady_clock::now()) {}

Progress::~Progress() {
  if (is_shown_) std::fputs("\r\033[K", stderr);
}

void Progress::advance(int64_t steps) {
  done_ = std::min(done_ + steps, total_);
  if (!is_terminal_) return;
  const auto now = std::chrono::steady_clock::now();
  if (now - last_ < kInterval) return;
  last_ = now;
  is_shown_ = true;
  const double share = static_cast<double>(done_) / static_cast<double>(total_);
  const std::string bar(static_cast<size_t>(share * kBarWidth), '#');
  std::fprintf(stderr, "\r%s [%-*s] %3.0f %%\033[K", what_.c_str(), kBarWidth, bar.c_str(),
               100.0 * share);
  std::fflush(stderr);
}

}  // namespace pkv::cli
