#include "core/runtime/describe.h"

#include "core/base/dtype.h"
#include "core/base/text.h"
#include "core/runtime/capabilities.h"
#include "core/runtime/json_writer.h"
#include "pariskv/pariskv.h"

namespace pkv {
namespace {

// The fields of an object that is open.
void write_device(const Device& device, JsonWriter& json) {
  const pkv_backend_device_info& info = device.info();
  const Capabilities can = ask_capabilities(device);
  json.field("device", device.name())
      .field("device_type", device_type_name(info.device_type))
      .field("device_id", info.device_id)
      .field("lanes", info.lanes)
      .field("memory_bytes", info.memory_bytes)
      .list("dtypes", can.dtypes)
      .list("head_dims", can.head_dims)
      .list("codecs", can.codecs)
      .list("votes", can.votes)
      .list("tails", can.tails)
      .key("layouts")
      .open('[');
  for (const Capabilities::Layout& layout : can.layouts) {
    json.open('{')
        .field("codec", layout.codec)
        .field("vote", layout.vote)
        .field("head_dim", layout.head_dim)
        .field("record_bytes", layout.record_bytes)
        .field("tokens", Capabilities::kLayoutTokens)
        .field("row_bytes", layout.row_bytes)
        .close('}');
  }
  json.close(']');
}

void write_devices(const Registry& registry, const Backend& backend, JsonWriter& json) {
  json.key("devices").open('[');
  for (int32_t ordinal = 0; ordinal < backend.device_count; ++ordinal) {
    json.open('{').field("ordinal", ordinal);
    const auto device = registry.open_device(backend.name, ordinal);
    if (device.ok()) {
      write_device(**device, json);
    } else {
      json.field("error", to_std(device.status().message()));
    }
    json.close('}');
  }
  json.close(']');
}

void write_backend(const Registry& registry, const Backend& backend, JsonWriter& json) {
  json.open('{')
      .field("name", backend.name)
      .field("version", backend.version)
      .field("about", backend.about)
      .field("builtin", backend.is_builtin)
      .field("path", backend.path)
      .field("score", backend.score)
      .field("usable", backend.is_usable)
      .field("reason", backend.reason);
  if (backend.is_usable) write_devices(registry, backend, json);
  json.close('}');
}

}  // namespace

std::string describe_registry(const Registry& registry) {
  JsonWriter json;
  json.open('{').field("version",
                       str_cat(PKV_VERSION_MAJOR, ".", PKV_VERSION_MINOR, ".", PKV_VERSION_PATCH));
  json.key("places").open('[');
  for (const Place& place : registry.places()) {
    json.open('{')
        .field("folder", place.folder)
        .field("setting", place.origin)
        .field("outcome", place.outcome)
        .close('}');
  }
  json.close(']').key("backends").open('[');
  for (int32_t i = 0; i < registry.size(); ++i) write_backend(registry, registry.at(i), json);
  return json.close(']').close('}').text();
}

std::string describe_device(const Device& device) {
  JsonWriter json;
  json.open('{').field("backend", device.backend().name);
  write_device(device, json);
  return json.close('}').text();
}

}  // namespace pkv
