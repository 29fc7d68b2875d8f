// Exported functions of section "Device, memory, streams, events".
#include <memory>
#include <utility>

#include "api/src/guard.h"
#include "api/src/handles.h"
#include "api/src/struct_size.h"
#include "core/base/status.h"
#include "core/base/text.h"
#include "core/runtime/describe.h"
#include "pariskv/pariskv.h"

static_assert(int{PKV_ALLOC_DEVICE} == PKV_MEMORY_DEVICE && int{PKV_ALLOC_HOST} == PKV_MEMORY_HOST);

pkv_status pkv_device_open(const pkv_runtime* runtime, const char* backend, int32_t ordinal,
                           pkv_device** out) {
  return pkv::guard(__func__, [&]() -> absl::Status {
    PKV_REQUIRE(out);
    *out = nullptr;
    PKV_REQUIRE(runtime);
    PKV_REQUIRE(backend);
    auto device = std::make_unique<pkv_device>();
    PKV_ASSIGN_OR_RETURN(device->device, runtime->registry->open_device(backend, ordinal));
    *out = device.release();
    return absl::OkStatus();
  });
}

void pkv_device_close(pkv_device* device) { pkv::destroy(device); }

pkv_status pkv_device_describe(const pkv_device* device, const char** out) {
  return pkv::guard(__func__, [&]() -> absl::Status {
    PKV_REQUIRE(out);
    *out = nullptr;
    PKV_REQUIRE(device);
    *out = device->texts.keep(pkv::describe_device(*device->device));
    return absl::OkStatus();
  });
}

const char* pkv_device_backend(const pkv_device* device) {
  return device == nullptr ? "" : device->device->backend().name;
}

pkv_status pkv_device_set(pkv_device* device, const char* name, const char* value) {
  return pkv::guard(__func__, [&]() -> absl::Status {
    PKV_REQUIRE(device);
    PKV_REQUIRE(name);
    PKV_REQUIRE(value);
    return device->device->set(name, value);
  });
}

pkv_status pkv_device_set_parallel(pkv_device* device, const pkv_parallel* parallel) {
  return pkv::guard(__func__, [&]() -> absl::Status {
    PKV_REQUIRE(device);
    if (parallel == nullptr) return device->device->set_parallel(nullptr);
    PKV_ASSIGN_OR_RETURN(const pkv_parallel given,
                         pkv::read_struct(parallel, pkv_parallel{}, "pkv_parallel"));
    return device->device->set_parallel(&given);
  });
}

pkv_status pkv_device_alloc(pkv_device* device, int32_t kind, int64_t bytes, void** out) {
  return pkv::guard(__func__, [&]() -> absl::Status {
    PKV_REQUIRE(out);
    *out = nullptr;
    PKV_REQUIRE(device);
    if (bytes < 1) {
      return absl::InvalidArgumentError(pkv::str_cat("bytes=", bytes, ", accepted: 1 or more"));
    }
    PKV_ASSIGN_OR_RETURN(pkv::Buffer buffer, pkv::Buffer::create(device->device, kind, bytes));
    void* data = buffer.data();
    const std::lock_guard<std::mutex> lock(device->mutex);
    device->allocations.emplace(data, std::move(buffer));
    *out = data;
    return absl::OkStatus();
  });
}

pkv_status pkv_device_free(pkv_device* device, void* data) {
  return pkv::guard(__func__, [&]() -> absl::Status {
    PKV_REQUIRE(device);
    if (data == nullptr) return absl::OkStatus();
    const std::lock_guard<std::mutex> lock(device->mutex);
    if (device->allocations.erase(data) == 0) {
      return absl::InvalidArgumentError(
          "data is no address that pkv_device_alloc gave out for this device, or was freed before");
    }
    return absl::OkStatus();
  });
}

pkv_status pkv_device_copy(pkv_stream* stream, void* target, const void* source, int64_t bytes) {
  return pkv::guard(__func__, [&]() -> absl::Status {
    PKV_REQUIRE(stream);
    if (bytes != 0) {
      PKV_REQUIRE(target);
      PKV_REQUIRE(source);
    }
    return stream->stream.copy(target, source, bytes);
  });
}

pkv_status pkv_stream_create(pkv_device* device, pkv_stream** out) {
  return pkv::guard(__func__, [&]() -> absl::Status {
    PKV_REQUIRE(out);
    *out = nullptr;
    PKV_REQUIRE(device);
    PKV_ASSIGN_OR_RETURN(pkv::Stream stream, pkv::Stream::create(device->device));
    *out = new pkv_stream{std::move(stream)};
    return absl::OkStatus();
  });
}

pkv_status pkv_stream_wrap(pkv_device* device, uintptr_t native, pkv_stream** out) {
  return pkv::guard(__func__, [&]() -> absl::Status {
    PKV_REQUIRE(out);
    *out = nullptr;
    PKV_REQUIRE(device);
    PKV_ASSIGN_OR_RETURN(pkv::Stream stream, pkv::Stream::wrap(device->device, native));
    *out = new pkv_stream{std::move(stream)};
    return absl::OkStatus();
  });
}

void pkv_stream_destroy(pkv_stream* stream) { pkv::destroy(stream); }

pkv_status pkv_stream_sync(pkv_stream* stream) {
  return pkv::guard(__func__, [&]() -> absl::Status {
    PKV_REQUIRE(stream);
    return stream->stream.sync();
  });
}

pkv_status pkv_event_create(pkv_device* device, pkv_event** out) {
  return pkv::guard(__func__, [&]() -> absl::Status {
    PKV_REQUIRE(out);
    *out = nullptr;
    PKV_REQUIRE(device);
    PKV_ASSIGN_OR_RETURN(pkv::Event event, pkv::Event::create(device->device));
    *out = new pkv_event{std::move(event)};
    return absl::OkStatus();
  });
}

void pkv_event_destroy(pkv_event* event) { pkv::destroy(event); }

pkv_status pkv_event_record(pkv_event* event, pkv_stream* stream) {
  return pkv::guard(__func__, [&]() -> absl::Status {
    PKV_REQUIRE(event);
    PKV_REQUIRE(stream);
    return event->event.record(stream->stream);
  });
}

pkv_status pkv_event_wait(pkv_event* event, pkv_stream* stream) {
  return pkv::guard(__func__, [&]() -> absl::Status {
    PKV_REQUIRE(event);
    PKV_REQUIRE(stream);
    return event->event.wait(stream->stream);
  });
}
