// Options as texts: lines NAME=VALUE for a config, for a device, for a codec made of the config.
// What is taken is told back in a form that is taken again; what is refused keeps the old value.
#include <algorithm>

#include "pariskv/pariskv.hpp"
#include "tests/fuzz/fuzz.h"

namespace pkv::fuzz {
namespace {

struct Machine {
  Runtime runtime;
  Device cpu{runtime, "cpu"};
  Device reference{runtime, "cpu_ref"};
};

Machine& machine() {
  static Machine* const kept = new Machine;
  return *kept;
}

// Names of the options, in their order.
const std::vector<std::string>& names() {
  static const std::vector<std::string>* const kept = [] {
    auto* all = new std::vector<std::string>;
    int32_t count = 0;
    check(pkv_config_option_count(&count));
    for (int32_t i = 0; i < count; ++i) {
      auto info = option_info();
      check(pkv_config_option_info(i, &info));
      all->emplace_back(info.name);
    }
    return all;
  }();
  return *kept;
}

std::string value_of(const Config& config, const std::string& name) {
  const char* value = nullptr;
  check(pkv_config_get(config.get(), name.c_str(), &value));
  return value;
}

std::vector<std::string> values_of(const Config& config) {
  std::vector<std::string> values;
  values.reserve(names().size());
  for (const std::string& name : names()) values.push_back(value_of(config, name));
  return values;
}

// `values` are those that the config should have.
void set(Config& config, const std::string& name, const std::string& value,
         std::vector<std::string>& values) {
  const pkv_status status = pkv_config_set(config.get(), name.c_str(), value.c_str());
  const auto at = std::find(names().begin(), names().end(), name);
  if (status != PKV_OK) {
    require(status == (at != names().end() ? PKV_INVALID_ARGUMENT : PKV_NOT_FOUND),
            "an unknown option is not found, a known one has a wrong value");
    require_text(pkv_last_error());
    return;
  }
  require(at != names().end(), "an unknown option is not taken");
  std::string& kept = values[static_cast<std::size_t>(at - names().begin())];
  kept = value_of(config, name);
  require(pkv_config_set(config.get(), name.c_str(), kept.c_str()) == PKV_OK &&
              value_of(config, name) == kept,
          "a value that is told back is taken, and means the same");
}

// A codec of two heads with mu = 0, s = 1, if the options go together.
void make_codec(const Config& config) {
  const std::vector<float> center(2 * 576), balance(2 * 576, 1.0F);
  auto data = codec_data();
  data.kv_heads = 2;
  data.center = center.data();
  data.balance = balance.data();
  const char* tail = nullptr;
  check(pkv_config_get(config.get(), "tail", &tail));
  if (std::string_view(tail).starts_with("sketch")) data.value_center = center.data();
  pkv_codec* codec = nullptr;
  const pkv_status status =
      pkv_codec_import(machine().reference.get(), config.get(), &data, &codec);
  require((status == PKV_OK) == (codec != nullptr), "a codec is made, or a code says why not");
  if (status != PKV_OK) {
    require(status == PKV_INVALID_ARGUMENT || status == PKV_UNIMPLEMENTED,
            "options that do not go together are refused as such");
    require_text(pkv_last_error());
    return;
  }
  auto g = geometry();
  check(pkv_codec_geometry(codec, &g));
  require(g.head_dim % 8 == 0 && g.head_dim >= 8 && g.head_dim <= 576 && g.value_dim >= 0 &&
              g.value_dim <= 576,
          "a codec's dimensions are within the documented range");
  int64_t bytes = 0;
  check(pkv_index_bytes(machine().reference.get(), codec, 1, 1, &bytes));
  pkv_codec_destroy(codec);
}

}  // namespace

std::vector<std::string> seeds() {
  std::vector<std::string> texts = {"default\nhead_dim=64\nk=32\ncandidates=0.1\n",
                                    "paper\nhead_dim=128\ntail=sketch4/8\nscale=0.125\n",
                                    "default\n@threads=1\n@isa=best\nhead_dim=24\n",
                                    "default\nhead_dim=8\nvalue_dim=16\nv_source=k_prefix\n"};
  const Config config("default");
  const std::vector<std::string> values = values_of(config);
  for (std::size_t i = 0; i < values.size(); ++i) {
    texts.push_back("default\nhead_dim=8\n" + names()[i] + "=" + values[i] + "\n");
  }
  int32_t count = 0;
  check(pkv_config_option_count(&count));
  std::string all = "paper\n";
  for (int32_t i = 0; i < count; ++i) {
    auto info = option_info();
    check(pkv_config_option_info(i, &info));
    all += std::string(info.name) + "=" + info.paper_value + "\n";
    texts.push_back(std::string("default\nhead_dim=8\n") + info.name + "=" + info.accepts + "\n");
  }
  texts.push_back(all);
  return texts;
}

void run(Input input) {
  Bytes bytes(input);
  pkv_config* made = nullptr;
  const std::string profile = bytes.text('\n');
  const pkv_status status = pkv_config_create(profile.c_str(), &made);
  pkv_config_destroy(made);
  if (status != PKV_OK) require_text(pkv_last_error());
  Config config(status == PKV_OK ? profile.c_str() : "default");
  std::vector<std::string> values = values_of(config);
  for (int lines = 0; lines < 8 && !bytes.empty(); ++lines) {
    const std::string line = bytes.text('\n');
    const std::size_t equals = line.find('=');
    const std::string name = line.substr(0, equals);
    const std::string value = equals == std::string::npos ? "" : line.substr(equals + 1);
    if (!name.starts_with("@")) {
      set(config, std::string(name.c_str()), value, values);
    } else if (pkv_device_set(machine().cpu.get(), name.c_str() + 1, value.c_str()) != PKV_OK) {
      require_text(pkv_last_error());
    }
  }
  require(values_of(config) == values,
          "a refused value changes nothing, one that is taken its own option alone");
  make_codec(config);
}

}  // namespace pkv::fuzz
