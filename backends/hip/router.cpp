#include "backends/hip/router.h"

#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>

#include "pariskv/pariskv_backend.hpp"

namespace pkv::hip {
namespace {

// What is behind pkv_backend_device here.
struct Routed {
  const pkv_backend* table;
  pkv_backend_device* device;
};

Routed& routed(pkv_backend_device* device) { return *reinterpret_cast<Routed*>(device); }

// A slot of the table that hands on to the same slot of the device's own.
template <auto kSlot, class Slot>
struct Forward;
template <auto kSlot, class Result, class... P>
struct Forward<kSlot, Result (*pkv_backend::*)(pkv_backend_device*, P...)> {
  static Result call(pkv_backend_device* device, P... arguments) {
    const Routed& to = routed(device);
    return (to.table->*kSlot)(to.device, arguments...);
  }
};
template <auto kSlot>
constexpr auto kForward = Forward<kSlot, decltype(kSlot)>::call;

// The same for the slots of a stage.
template <auto kStage, class Stage>
struct ForwardStage;
template <auto kStage, class Slots>
struct ForwardStage<kStage, Slots pkv_backend::*> {
  template <class Args>
  static Slots slots(pkv_status (*)(pkv_backend_device*, const Args*)) {
    return {
        [](pkv_backend_device* device, const Args* args) {
          const Routed& to = routed(device);
          return (to.table->*kStage).supports(to.device, args);
        },
        [](pkv_backend_device* device, const Args* args, int64_t* out) {
          const Routed& to = routed(device);
          return (to.table->*kStage).scratch_bytes(to.device, args, out);
        },
        [](pkv_backend_device* device, pkv_backend_stream* stream, const Args* args,
           void* scratch) {
          const Routed& to = routed(device);
          return (to.table->*kStage).run(to.device, stream, args, scratch);
        },
    };
  }
};
// An optional stage that none has stays absent.
template <auto kStage>
void forward_stage(const pkv_backend& first, pkv_backend& table) {
  using Stage = ForwardStage<kStage, decltype(kStage)>;
  if ((first.*kStage).run == nullptr) return;
  table.*kStage = Stage::slots((first.*kStage).supports);
}

std::string names_of(std::span<const Architecture> all) {
  std::string text;
  for (const Architecture& one : all) text += (text.empty() ? "" : ", ") + std::string(one.name);
  return text;
}

pkv_status find_table(const pkv_host* host, int32_t ordinal, const pkv_backend** out) {
  char name[64] = {};
  const pkv_status status = name_architecture(host, ordinal, name, sizeof name);
  if (status != PKV_OK) return status;
  const Architecture* found = find_architecture(architectures(), name);
  if (found == nullptr) {
    return backend::refuse(host, PKV_UNAVAILABLE,
                           "device %d: gcnArchName=%s, but this build has code for %s: build with "
                           "-DPARISKV_HIP_ARCHITECTURES=%.*s",
                           ordinal, name, names_of(architectures()).c_str(),
                           static_cast<int>(std::strcspn(name, ":")), name);
  }
  *out = found->table;
  return PKV_OK;
}

pkv_status device_info(const pkv_host* host, int32_t ordinal, pkv_backend_device_info* out) {
  return backend::guard(host, [&] {
    const pkv_backend* table = nullptr;
    const pkv_status status = find_table(host, ordinal, &table);
    return status == PKV_OK ? table->device_info(host, ordinal, out) : status;
  });
}

pkv_status device_open(const pkv_host* host, int32_t ordinal, pkv_backend_device** out) {
  return backend::guard(host, [&] {
    auto made = std::make_unique<Routed>();
    pkv_status status = find_table(host, ordinal, &made->table);
    if (status == PKV_OK) status = made->table->device_open(host, ordinal, &made->device);
    if (status == PKV_OK) *out = reinterpret_cast<pkv_backend_device*>(made.release());
    return status;
  });
}

void device_close(pkv_backend_device* device) {
  const std::unique_ptr<Routed> owned(&routed(device));
  owned->table->device_close(owned->device);
}

}  // namespace

const Architecture* find_architecture(std::span<const Architecture> all, const char* name) {
  const std::string_view wanted(name, std::strcspn(name, ":"));
  for (const Architecture& one : all) {
    if (wanted == one.name) return &one;
  }
  return nullptr;
}

pkv_backend route(const pkv_backend& first) {
  pkv_backend table = first;
  table.device_info = device_info;
  table.device_open = device_open;
  table.device_close = device_close;
  table.memory_alloc = kForward<&pkv_backend::memory_alloc>;
  table.memory_free = kForward<&pkv_backend::memory_free>;
  table.memory_copy = kForward<&pkv_backend::memory_copy>;
  table.memory_fill = kForward<&pkv_backend::memory_fill>;
  table.stream_create = kForward<&pkv_backend::stream_create>;
  table.stream_wrap = kForward<&pkv_backend::stream_wrap>;
  table.stream_destroy = kForward<&pkv_backend::stream_destroy>;
  table.stream_sync = kForward<&pkv_backend::stream_sync>;
  table.event_create = kForward<&pkv_backend::event_create>;
  table.event_destroy = kForward<&pkv_backend::event_destroy>;
  table.event_record = kForward<&pkv_backend::event_record>;
  table.event_wait = kForward<&pkv_backend::event_wait>;
  table.store_row_bytes = kForward<&pkv_backend::store_row_bytes>;
  table.store_import = kForward<&pkv_backend::store_import>;
  table.store_export = kForward<&pkv_backend::store_export>;
  table.device_set = kForward<&pkv_backend::device_set>;
  forward_stage<&pkv_backend::fit>(first, table);
  forward_stage<&pkv_backend::encode>(first, table);
  forward_stage<&pkv_backend::vote>(first, table);
  forward_stage<&pkv_backend::select>(first, table);
  forward_stage<&pkv_backend::rerank>(first, table);
  forward_stage<&pkv_backend::fetch>(first, table);
  forward_stage<&pkv_backend::attend>(first, table);
  forward_stage<&pkv_backend::step>(first, table);
  return table;
}

}  // namespace pkv::hip
