// Words that the host writes into device memory in stream order: entries of page tables, states of
// sequences, small arrays. They go with the launch by value, so nothing waits and nothing is
// overwritten that enqueued work reads. Backends without memory_words: tables lie in host memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "core/runtime/device.h"
#include "core/runtime/stream.h"

namespace pkv {

class Words {
 public:
  // Whether the backend has all that a cache on the device needs.
  static bool are_served(const Device& device) { return device.backend().memory_words != nullptr; }

  // To be written by the next flush, before work that is enqueued behind it.
  void set(void* target, uint64_t value) {
    targets_.push_back(target);
    values_.push_back(value);
  }
  absl::Status flush(const Stream& stream);
  // Memory for `more` words that are set from now on, so that neither set nor flush takes any.
  void make_room(std::size_t more);

 private:
  void drop_repeated();

  std::vector<void*> targets_;
  std::vector<uint64_t> values_;
  // Kept so that a flush does not allocate.
  std::vector<std::size_t> order_;
  std::vector<void*> sorted_targets_;
  std::vector<uint64_t> sorted_values_;
};

}  // namespace pkv
