// One piece of memory that a call gets. Where the device reads host memory as any other
// (PKV_DEVICE_CPU), a piece may be sparse, or end at a page that nobody may touch; a process that
// does dies, and fault_text says at which array.
#pragma once

#include <cstdint>
#include <string>

#include "tests/conformance/place.h"

namespace pkv::conformance {

class Memory {
 public:
  // From the device, of a kind (PKV_ALLOC_*).
  Memory(const Place& place, int64_t bytes, int32_t kind);
  // `bytes` that begin at a multiple of `alignment` and end less than `alignment` before a page
  // without access. Devices that read host memory as any other only.
  static Memory before_guard(const Place& place, const char* name, int64_t bytes,
                             int64_t alignment);
  // Of which a small part will be written: takes no more than that where the device allows it.
  // Throws Skip if the device has not as much.
  static Memory sparse(const Place& place, int64_t bytes);
  ~Memory();
  Memory(Memory&& other) noexcept;
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  uint8_t* data() const { return data_; }

 private:
  explicit Memory(const Place& place) : place_(place) {}

  const Place& place_;
  uint8_t* data_ = nullptr;
  uint8_t* mapped_ = nullptr;  // by the system; NULL: from the device
  int64_t mapped_bytes_ = 0;
  int32_t guard_ = -1;  // its entry in the table of guards
};

bool can_guard(const Place& place);

// Writes what was touched into `text` when the process dies of it: memory that outlives it.
void watch_guards(char* text, int64_t bytes);

}  // namespace pkv::conformance
