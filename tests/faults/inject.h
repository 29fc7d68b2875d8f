// Faults that a test orders: the program's own open, pread, pwrite, ftruncate, fsync, close, rename
// and unlink, and its own operator new, stand before those of the system, for the library too.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace pkv::faults {

enum class Call {
  kOpen,
  kRead,
  kWrite,
  kTruncate,
  kFlush,
  kClose,
  kRename,
  kUnlink,
};
inline constexpr Call kCalls[] = {Call::kOpen,  Call::kRead,  Call::kWrite,  Call::kTruncate,
                                  Call::kFlush, Call::kClose, Call::kRename, Call::kUnlink};
inline constexpr const char* kCallNames[] = {"open",  "read",  "write",  "ftruncate",
                                             "fsync", "close", "rename", "unlink"};

// What happens at call number `at` of its kind, from 1; `lasts`: and at all behind it.
struct Fault {
  Call call = Call::kOpen;
  int64_t at = 0;
  bool lasts = false;
  int error = 0;  // errno; 0: half of the bytes are read or written, which is no failure
};

// A call that changed something, as far as a power cut can undo it.
struct Event {
  Call call;
  std::string path;    // of what it was about; of a rename the old name
  std::string other;   // of a rename the new name
  int64_t offset = 0;  // of a write; of a truncation the length
  std::string bytes;   // of a write
};

// From begin_files to end_files calls are counted, and the fault, if any, is made.
void begin_files(const Fault* fault);
struct FileReport {
  int64_t counts[8] = {};
  bool was_made = false;
  std::vector<Event> events;
};
FileReport end_files();

// Allocation number `at` from now on fails, alone or with all behind it.
void begin_memory(int64_t at, bool lasts);
struct MemoryReport {
  int64_t count;  // of allocations
  bool was_made;
};
MemoryReport end_memory();

}  // namespace pkv::faults
