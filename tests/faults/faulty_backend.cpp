// A plug-in that is another backend (cpu, gpu-host) whose slots fail on order: with
// PKV_UNAVAILABLE, as of a device that is lost, memory with PKV_RESOURCE_EXHAUSTED. Slots that
// cannot fail (free, close, destroy) go on, and are counted. With PKV_FAULTY_STAGES in the
// environment it lacks the slot `step`, so that all stages are called.
#include "tests/faults/faulty_backend.h"

#include <atomic>
#include <cstdlib>

#include "pariskv/pariskv_backend.h"
#include "tests/faults/faulty_sound.h"

extern "C" PKV_API const pkv_backend* pkv_backend_query(uint32_t host_max_abi,
                                                        const pkv_host* host);

namespace {

constexpr int kMostSlots = 64;

struct SlotCount {
  const char* name = nullptr;
  std::atomic<int64_t> calls{0};
  std::atomic<int64_t> faults{0};
};
SlotCount slots[kMostSlots];
int slot_count = 0;

std::atomic<int64_t> calls{0}, faults{0}, fail_at{0}, memory{0}, handles{0};
std::atomic<bool> is_on{false}, fails_on{false};
std::atomic<const char*> first{nullptr};
const pkv_host* host_of_plugin = nullptr;

bool is_refused(SlotCount& slot) {
  ++slot.calls;
  if (!is_on) return false;
  const int64_t number = ++calls;
  if (number != fail_at && !(fails_on && number > fail_at)) return false;
  ++slot.faults;
  if (++faults == 1) first = slot.name;
  host_of_plugin->report(host_of_plugin, "a fault on order");
  return true;
}

// kMadeAnyway: the call is made all the same, and its result thrown away: whoever waits for a
// stream that fails has waited, since what is enqueued may use the caller's memory.
template <int kSlot, bool kMadeAnyway = false, class... Arguments>
void wrap(const char* name, pkv_status refusal, pkv_status (*&slot)(Arguments...)) {
  if (slot == nullptr) return;
  static pkv_status (*sound)(Arguments...);
  static SlotCount* count;
  static pkv_status code;
  if (sound == nullptr) {
    count = &slots[slot_count++];
    count->name = name;
  }
  sound = slot;
  code = refusal;
  slot = [](Arguments... arguments) {
    if (!is_refused(*count)) return sound(arguments...);
    if (kMadeAnyway) sound(arguments...);
    return code;
  };
}

#define PKV_WRAP(path) wrap<__COUNTER__>(#path, PKV_UNAVAILABLE, table.path)
#define PKV_WRAP_STAGE(stage)    \
  PKV_WRAP(stage.supports);      \
  PKV_WRAP(stage.scratch_bytes); \
  PKV_WRAP(stage.run)

// The slots that hand things out, counted below their faults.
const pkv_backend* sound_table = nullptr;

pkv_status counted_alloc(pkv_backend_device* device, int32_t kind, int64_t bytes, void** out) {
  const pkv_status status = sound_table->memory_alloc(device, kind, bytes, out);
  memory += status == PKV_OK ? 1 : 0;
  return status;
}
void counted_free(pkv_backend_device* device, int32_t kind, void* data, int64_t bytes) {
  --memory;
  sound_table->memory_free(device, kind, data, bytes);
}
pkv_status counted_stream(pkv_backend_device* device, pkv_backend_stream** out) {
  const pkv_status status = sound_table->stream_create(device, out);
  handles += status == PKV_OK ? 1 : 0;
  return status;
}
pkv_status counted_wrap(pkv_backend_device* device, uintptr_t native, pkv_backend_stream** out) {
  const pkv_status status = sound_table->stream_wrap(device, native, out);
  handles += status == PKV_OK ? 1 : 0;
  return status;
}
void counted_stream_end(pkv_backend_device* device, pkv_backend_stream* stream) {
  --handles;
  sound_table->stream_destroy(device, stream);
}
pkv_status counted_event(pkv_backend_device* device, pkv_backend_event** out) {
  const pkv_status status = sound_table->event_create(device, out);
  handles += status == PKV_OK ? 1 : 0;
  return status;
}
void counted_event_end(pkv_backend_device* device, pkv_backend_event* event) {
  --handles;
  sound_table->event_destroy(device, event);
}

pkv_backend faulty_table(const pkv_backend& sound) {
  pkv_backend table = sound;
  table.name = "faulty";
  table.score = 0;
  if (std::getenv("PKV_FAULTY_STAGES") != nullptr) table.step = {};
  table.memory_alloc = counted_alloc;
  table.memory_free = counted_free;
  table.stream_create = counted_stream;
  table.stream_wrap = counted_wrap;
  table.stream_destroy = counted_stream_end;
  table.event_create = counted_event;
  table.event_destroy = counted_event_end;
  wrap<__COUNTER__>("memory_alloc", PKV_RESOURCE_EXHAUSTED, table.memory_alloc);
  PKV_WRAP(device_open);
  PKV_WRAP(memory_copy);
  PKV_WRAP(memory_fill);
  PKV_WRAP(stream_create);
  PKV_WRAP(stream_wrap);
  wrap<__COUNTER__, true>("stream_sync", PKV_UNAVAILABLE, table.stream_sync);
  PKV_WRAP(event_create);
  PKV_WRAP(event_record);
  PKV_WRAP(event_wait);
  PKV_WRAP(store_row_bytes);
  PKV_WRAP(store_import);
  PKV_WRAP(store_export);
  PKV_WRAP_STAGE(fit);
  PKV_WRAP_STAGE(encode);
  PKV_WRAP_STAGE(vote);
  PKV_WRAP_STAGE(select);
  PKV_WRAP_STAGE(rerank);
  PKV_WRAP_STAGE(fetch);
  PKV_WRAP_STAGE(attend);
  PKV_WRAP_STAGE(step);
  PKV_WRAP(merge);
  PKV_WRAP(memory_words);
  PKV_WRAP(stream_capturing);
  PKV_WRAP(place);
  PKV_WRAP(advance);
  return table;
}

}  // namespace

// PKV_BACKEND_QUERY_SYMBOL
const pkv_backend* pkv_backend_query(uint32_t host_max_abi, const pkv_host* host) {
  sound_table = pkv_sound_query(host_max_abi, host);
  if (sound_table == nullptr) return nullptr;
  host_of_plugin = host;
  static const pkv_backend table = faulty_table(*sound_table);
  return &table;
}

extern "C" {

PKV_API void pkv_faulty_begin(int64_t at, int32_t lasts) {
  calls = faults = 0;
  first = nullptr;
  fail_at = at;
  fails_on = lasts != 0;
  is_on = true;
}

PKV_API void pkv_faulty_end(pkv_faulty_report* out) {
  is_on = false;
  *out = {calls, faults, first, memory, handles};
}

PKV_API int32_t pkv_faulty_slot(int32_t i, const char** name, int64_t* slot_calls,
                                int64_t* slot_faults) {
  if (i < 0 || i >= slot_count) return 0;
  *name = slots[i].name;
  *slot_calls = slots[i].calls;
  *slot_faults = slots[i].faults;
  return 1;
}
}
