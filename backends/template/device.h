// The types behind the table: what a device, a stream and an event of this backend are.
#pragma once

#include <cstdint>

#include "pariskv/pariskv_backend.h"

// Add what one open device needs: its ordinal, handles of the vendor's library, limits that were
// asked for once. Slots are called from several threads at once, so nothing here changes after
// device_open.
struct pkv_backend_device {
  const pkv_host* host;  // for report and log
};

// A cudaStream_t, a hipStream_t, a queue. `is_borrowed`: stream_wrap made it, the vendor's stays.
struct pkv_backend_stream {
  uintptr_t native;
  bool is_borrowed;
};

struct pkv_backend_event {
  bool is_recorded;
};

namespace pkv::template_backend {

// Discovery, memory, streams and events. device.cpp
void fill_device_slots(pkv_backend& table);

}  // namespace pkv::template_backend
