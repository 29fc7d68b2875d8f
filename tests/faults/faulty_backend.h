// How a test orders a fault of the faulty plug-in (faulty_backend.cpp): these are exported by it.
#pragma once

#include <cstdint>

extern "C" {

struct pkv_faulty_report {
  int64_t calls;            // of slots that can fail, since begin
  int64_t faults;           // of them refused
  const char* first;        // slot of the first fault; NULL: none was made
  int64_t memory, handles;  // of all that the backend gave and did not get back: blocks; streams
                            // and events
};

// Call number `at` from now on, from 1, is refused without being made, alone or with all behind it.
void pkv_faulty_begin(int64_t at, int32_t lasts);
void pkv_faulty_end(pkv_faulty_report* out);
// Name of slot i, calls it has had and faults made in it since the library was loaded; 0: no slot
// i.
int32_t pkv_faulty_slot(int32_t i, const char** name, int64_t* calls, int64_t* faults);
}
