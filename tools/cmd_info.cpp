// pariskv info: what is here, and what it accepts.
#include <algorithm>

#include "tools/command_line.h"
#include "tools/commands.h"
#include "tools/config_options.h"
#include "tools/engine.h"
#include "tools/json.h"
#include "tools/output.h"
#include "tools/table.h"

namespace pkv::cli {
namespace {

struct InfoOptions {
  Common common;
  OutputOptions output;
  bool shows_options = false;
};

absl::StatusOr<Json> options_json() {
  CLI_ASSIGN_OR_RETURN(const auto options, library_options());
  Json list = Json::array();
  for (const OptionText& option : options) {
    list.push_back({{"name", option.name},
                    {"accepts", option.accepts},
                    {"default", option.default_value},
                    {"paper", option.paper_value},
                    {"about", option.about}});
  }
  return list;
}

// What the library says of itself, its options, and what `auto` takes.
absl::StatusOr<Json> collect(const Common& common) {
  CLI_ASSIGN_OR_RETURN(const Runtime runtime, create_runtime(common));
  const char* text = nullptr;
  CLI_RETURN_IF_ERROR(from_library(pkv_runtime_describe(runtime.get(), &text), About::kBackend));
  Json info = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!info.is_object()) return system_error("pkv_runtime_describe: not a JSON object: {}", text);
  pkv_device* device = nullptr;
  const pkv_status opened = pkv_device_open(runtime.get(), common.backend.c_str(),
                                            static_cast<int32_t>(common.device), &device);
  // Without any usable backend there is still something to say, unless one was asked for.
  if (opened != PKV_OK && common.backend != "auto") {
    return from_library(opened, About::kBackend, fmt::format("--backend={}", common.backend));
  }
  const Device closer(device);
  info["chosen"] = opened == PKV_OK ? Json(pkv_device_backend(device)) : Json(nullptr);
  if (common.backend != "auto") {
    Json& backends = info["backends"];
    backends.erase(std::remove_if(backends.begin(), backends.end(),
                                  [&](const Json& backend) {
                                    return backend.value("name", "") != common.backend;
                                  }),
                   backends.end());
  }
  CLI_ASSIGN_OR_RETURN(info["options"], options_json());
  return info;
}

// 8, 16, 24 -> "8..24 by 8"; other lists as they are.
std::string list_text(const Json& list) {
  if (list.size() > 2 && list[0].is_number_integer()) {
    const auto first = list.front().get<int64_t>();
    const auto step = list[1].get<int64_t>() - first;
    bool is_even = true;
    for (size_t i = 0; i < list.size(); ++i) {
      is_even = is_even && list[i].get<int64_t>() == first + static_cast<int64_t>(i) * step;
    }
    if (is_even) return fmt::format("{}..{} by {}", first, list.back().get<int64_t>(), step);
  }
  std::string text;
  for (const Json& item : list) {
    text += (text.empty() ? "" : ", ") + (item.is_string() ? item.get<std::string>() : item.dump());
  }
  return text;
}

// Of a device that has memory of its own.
std::string memory_text(const Json& device) {
  if (device.value("device_type", "cpu") == "cpu") return "";
  return fmt::format(", {:.1f} GiB, {} lanes",
                     static_cast<double>(device.value("memory_bytes", int64_t{0})) / (1 << 30),
                     device.value("lanes", 0));
}

std::string devices_text(const Json& backend) {
  std::string text;
  for (const Json& device : backend.value("devices", Json::array())) {
    if (device.contains("error")) {
      text +=
          fmt::format("  device {}: {}\n", device.value("ordinal", 0), device.value("error", ""));
      continue;
    }
    text += fmt::format("  device {}: {}{}\n", device.value("ordinal", 0),
                        device.value("device", ""), memory_text(device));
    for (const char* field : {"dtypes", "head_dims", "codecs", "votes", "tails"}) {
      text += fmt::format("    {:<10} {}\n", field, list_text(device.value(field, Json::array())));
    }
    for (const Json& layout : device.value("layouts", Json::array())) {
      text += fmt::format("    {:<10} {} with vote {}: {} bytes per key at head_dim {}\n",
                          "records", layout.value("codec", ""), layout.value("vote", ""),
                          layout.value("record_bytes", 0), layout.value("head_dim", 0));
    }
  }
  return text;
}

std::string backends_text(const Json& info) {
  std::string text = fmt::format("pariskv {}\n\nBackends\n", info.value("version", ""));
  for (const Json& backend : info["backends"]) {
    const std::string name = backend.value("name", "");
    const std::string path = backend.value("path", "");
    text +=
        fmt::format("{}{} {}, score {}, {}{}\n", name.empty() ? path : name,
                    info["chosen"] == name ? " (chosen)" : "", backend.value("version", ""),
                    backend.value("score", 0), backend.value("builtin", false) ? "built in" : path,
                    backend.value("usable", false)
                        ? ""
                        : fmt::format("; not usable: {}", backend.value("reason", "")));
    text += devices_text(backend);
  }
  text += "\nPlaces searched for backends, in order\n";
  for (const Json& place : info["places"]) {
    text += fmt::format("  {} ({}): {}\n", place.value("folder", ""), place.value("setting", ""),
                        place.value("outcome", ""));
  }
  return text;
}

std::string options_text(const Json& info) {
  Table table({"option", "accepts", "default", "paper", "about"}, 5);
  for (const Json& option : info["options"]) {
    table.add({option.value("name", ""), option.value("accepts", ""), option.value("default", ""),
               option.value("paper", ""), option.value("about", "")});
  }
  return table.text();
}

}  // namespace

Outcome run_info(const Arguments& arguments) {
  InfoOptions options;
  CommandLine line("info", "[OPTION...]",
                   "Backends with devices, shapes and dtypes, the places they were looked for in,\n"
                   "and the options of the library with what they accept.");
  line.flag("options", &options.shows_options, "show the library's options instead of backends");
  offer_output(line, &options.output);
  line.common(&options.common);
  CLI_ASSIGN_OR_RETURN(const bool is_parsed, line.parse(arguments));
  if (!is_parsed) return kDone;
  CLI_RETURN_IF_ERROR(check_output(options.output, {}));
  CLI_ASSIGN_OR_RETURN(const Json info, collect(options.common));
  std::string text;
  if (options.common.is_json) {
    text = info.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
  } else {
    text = options.shows_options ? options_text(info) : backends_text(info);
  }
  CLI_RETURN_IF_ERROR(write_output(options.output, text));
  return kDone;
}

}  // namespace pkv::cli
