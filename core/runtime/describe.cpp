#include "core/runtime/describe.h"

#include <nlohmann/json.hpp>

#include "core/base/dtype.h"
#include "core/base/text.h"
#include "core/runtime/capabilities.h"
#include "pariskv/pariskv.h"

namespace pkv {
namespace {

using Json = nlohmann::ordered_json;

// Paths and texts of plug-ins need not be UTF-8; the JSON is.
std::string print(const Json& json) {
  return json.dump(2, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

Json layouts_json(const Capabilities& can) {
  Json layouts = Json::array();
  for (const Capabilities::Layout& layout : can.layouts) {
    layouts.push_back({{"codec", layout.codec},
                       {"vote", layout.vote},
                       {"head_dim", layout.head_dim},
                       {"record_bytes", layout.record_bytes},
                       {"tokens", Capabilities::kLayoutTokens},
                       {"row_bytes", layout.row_bytes}});
  }
  return layouts;
}

Json device_json(const Device& device) {
  const pkv_backend_device_info& info = device.info();
  const Capabilities can = ask_capabilities(device);
  return {{"device", device.name()},
          {"device_type", device_type_name(info.device_type)},
          {"device_id", info.device_id},
          {"lanes", info.lanes},
          {"memory_bytes", info.memory_bytes},
          {"dtypes", can.dtypes},
          {"head_dims", can.head_dims},
          {"codecs", can.codecs},
          {"votes", can.votes},
          {"tails", can.tails},
          {"layouts", layouts_json(can)}};
}

Json devices_json(const Registry& registry, const Backend& backend) {
  Json devices = Json::array();
  for (int32_t ordinal = 0; ordinal < backend.device_count; ++ordinal) {
    Json entry = {{"ordinal", ordinal}};
    const auto device = registry.open_device(backend.name, ordinal);
    if (device.ok()) {
      entry.update(device_json(**device));
    } else {
      entry["error"] = to_std(device.status().message());
    }
    devices.push_back(std::move(entry));
  }
  return devices;
}

Json backend_json(const Registry& registry, const Backend& backend) {
  Json json = {{"name", backend.name},        {"version", backend.version},
               {"about", backend.about},      {"builtin", backend.is_builtin},
               {"path", backend.path},        {"score", backend.score},
               {"usable", backend.is_usable}, {"reason", backend.reason}};
  if (backend.is_usable) json["devices"] = devices_json(registry, backend);
  return json;
}

}  // namespace

std::string describe_registry(const Registry& registry) {
  Json places = Json::array();
  for (const Place& place : registry.places()) {
    places.push_back(
        {{"folder", place.folder}, {"setting", place.origin}, {"outcome", place.outcome}});
  }
  Json backends = Json::array();
  for (int32_t i = 0; i < registry.size(); ++i) {
    backends.push_back(backend_json(registry, registry.at(i)));
  }
  return print(
      {{"version", str_cat(PKV_VERSION_MAJOR, ".", PKV_VERSION_MINOR, ".", PKV_VERSION_PATCH)},
       {"places", places},
       {"backends", backends}});
}

std::string describe_device(const Device& device) {
  Json json = {{"backend", device.backend().name}};
  json.update(device_json(device));
  return print(json);
}

}  // namespace pkv
