// Tells a process from the one that it was forked from. The child of a fork has copies of all
// objects, but neither the threads nor, on a GPU, the device behind them.
#pragma once

#include <cstdint>

namespace pkv {

// Another number behind every fork, in the child.
uint32_t process_number() noexcept;

// In which process an object was made.
class Birth {
 public:
  bool is_here() const noexcept { return process_ == process_number(); }

 private:
  uint32_t process_ = process_number();
};

}  // namespace pkv
