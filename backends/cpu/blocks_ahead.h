// Asks for the blocks of the votes that a scan comes to, some lines at a time.
// Not in their order: memory answers a core that follows several streams sooner than one that
// follows a single one (by a quarter to a third on the processors it was measured on), so the keys
// ahead are taken in kStreams runs that lie one behind the other, a line of each at a time.
#pragma once

#include <algorithm>
#include <cstdint>

#include "backends/cpu/layout.h"
#include "backends/cpu/prefetch.h"

namespace pkv::cpu {

class BlocksAhead {
 public:
  // Asks for nothing.
  BlocksAhead() = default;

  // Of a scan of the blocks that begin in [begin, end), begin a multiple of 64.
  BlocksAhead(const RecordRow& row, int64_t begin, int64_t end)
      : row_(&row), next_(begin), end_(end) {
    const int64_t block_lines = row.layout->block_bytes / kLine;
    per_block_ = (block_lines + kStreams - 1) / kStreams;
    // Whole blocks, about a page of memory; a page of the store holds a power of two of them.
    run_keys_ = kBlockKeys;
    while (2 * run_keys_ / kBlockKeys * block_lines <= kRunLines) run_keys_ *= 2;
    if (row.store.pages != nullptr) run_keys_ = std::min(run_keys_, row.store.mask + 1);
    run_lines_ = run_keys_ / kBlockKeys * block_lines;
    start_runs();
    for (; line_ < run_lines_; ++line_) ask();
    blocks_left_ = 0;
  }

  // Before each block.
  void start_block() {
    if (blocks_left_ == 0) start_runs();
    --blocks_left_;
    left_ = per_block_;
  }

  // A line of each run. The calls that a block needs are `requests_of` a layout; more do nothing.
  void request() {
    if (left_ == 0 || line_ >= run_lines_) return;
    --left_;
    ask();
    ++line_;
  }

  static int64_t requests_of(const Layout& layout) {
    return (layout.block_bytes / kLine + kStreams - 1) / kStreams;
  }

 private:
  static constexpr int64_t kStreams = 6;
  static constexpr int64_t kRunLines = 72;

  // Of runs behind the end the last one before it stands in.
  void start_runs() {
    blocks_left_ = kStreams * run_keys_ / kBlockKeys;
    line_ = next_ < end_ ? 0 : run_lines_;
    const uint8_t* run = nullptr;
    for (int64_t s = 0; s < kStreams && row_ != nullptr; ++s) {
      if (next_ < end_) run = row_->block(next_);
      runs_[s] = run;
      next_ += run_keys_;
    }
  }

  void ask() {
    for (const uint8_t* run : runs_) prefetch(run + line_ * kLine);
  }

  const RecordRow* row_ = nullptr;
  int64_t next_ = 0;  // first position behind the runs
  int64_t end_ = 0;
  int64_t run_keys_ = 0;
  int64_t run_lines_ = 0;
  int64_t per_block_ = 0;    // lines of each run to ask for
  int64_t left_ = 0;         // of these, for the present block
  int64_t blocks_left_ = 0;  // to be scanned until the next runs start
  int64_t line_ = 0;         // of each run
  const uint8_t* runs_[kStreams] = {};
};

}  // namespace pkv::cpu
