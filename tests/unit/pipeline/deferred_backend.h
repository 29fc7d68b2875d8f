// The reference backend as a device that works later: what is enqueued runs when somebody waits, so
// that memory which was only lent for a call is gone by then. Fresh memory is full of NaN; slots
// can be told to fail. Not thread-safe: one test at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "core/runtime/device.h"
#include "pariskv/pariskv_backend.h"

namespace pkv::test {

// What the devices opened last do. Counts go down with every call; the call that reaches 0 fails.
struct DeferredFaults {
  pkv_device_type device_type = PKV_DEVICE_CPU;
  int64_t fetch_scratch = 0;   // bytes that fetch asks for
  int64_t attend_scratch = 0;  // bytes that attend asks for on top, per token of dense parts
  bool refuses_f16 = false;    // vote, for queries
  int fail_encode = 0;
  int fail_export = 0;
  int fail_import = 0;
  int fail_alloc = 0;
  int fail_copy = 0;
  int fail_sync = 0;
  int waits = 0;        // stream_sync calls so far
  int allocations = 0;  // memory_alloc calls so far
  int event_waits = 0;  // event_wait calls so far, each behind a record
};
DeferredFaults& deferred_faults();

std::shared_ptr<const Device> open_deferred(const DeferredFaults& faults = {});

}  // namespace pkv::test
