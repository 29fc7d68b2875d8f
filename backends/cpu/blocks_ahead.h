// Asks for the blocks of the votes that a scan comes to, some lines at a time.
// Not in their order: memory answers a core that follows several streams sooner than one that
// follows a single one (by a quarter to a third on the processors it was measured on), so the keys
// ahead are taken in kStreams runs that lie one behind the other, a line of each in turn.
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

  // Of a scan of the blocks that begin in [begin, end), begin a multiple of 64, each of which calls
  // request() `requests` times.
  BlocksAhead(const RecordRow& row, int64_t begin, int64_t end, int64_t requests)
      : row_(&row), next_(begin), end_(end) {
    const int64_t block_lines = row.layout->block_bytes / kLine;
    per_request_ = (block_lines + requests - 1) / requests;
    per_block_ = block_lines;
    // Whole blocks, about a page of memory; a page of the store holds a power of two of them.
    run_keys_ = kBlockKeys;
    while (2 * run_keys_ / kBlockKeys * block_lines <= kRunLines) run_keys_ *= 2;
    if (row.store.pages != nullptr) run_keys_ = std::min(run_keys_, row.store.mask + 1);
    run_lines_ = run_keys_ / kBlockKeys * block_lines;
    start_runs();
    ask(kStreams * run_lines_);
  }

  void start_block() { left_ = per_block_; }

  // The next lines; all calls of a block together ask for as many lines as a block has.
  void request() {
    const int64_t count = std::min(per_request_, left_);
    left_ -= count;
    ask(count);
  }

 private:
  static constexpr int64_t kStreams = 8;
  static constexpr int64_t kRunLines = 72;

  void start_runs() {
    for (const uint8_t*& run : runs_) {
      run = next_ < end_ ? row_->block(next_) : nullptr;
      next_ += run_keys_;
    }
    line_ = 0;
    stream_ = 0;
  }

  void ask(int64_t count) {
    for (; count > 0 && runs_[0] != nullptr; --count) {
      if (runs_[stream_] != nullptr) prefetch(runs_[stream_] + line_ * kLine);
      if (++stream_ < kStreams) continue;
      stream_ = 0;
      if (++line_ == run_lines_) start_runs();
    }
  }

  const RecordRow* row_ = nullptr;
  int64_t next_ = 0;  // first position behind the runs
  int64_t end_ = 0;
  int64_t per_request_ = 0;  // lines
  int64_t per_block_ = 0;
  int64_t left_ = 0;  // of the present block
  int64_t run_keys_ = 0;
  int64_t run_lines_ = 0;
  const uint8_t* runs_[kStreams] = {};  // NULL: behind the end
  int64_t line_ = 0;                    // of each run
  int64_t stream_ = 0;
};

}  // namespace pkv::cpu
