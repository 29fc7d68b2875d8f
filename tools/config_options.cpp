#include "tools/config_options.h"

#include <algorithm>

#include "tools/status.h"

namespace pkv::cli {
namespace {

absl::StatusOr<Config> create_config(const std::string& profile) {
  pkv_config* config = nullptr;
  CLI_RETURN_IF_ERROR(
      from_library(pkv_config_create(profile.c_str(), &config), About::kOptions, "--profile"));
  return Config(config);
}

std::string help_of(const OptionText& option) {
  std::string text =
      fmt::format("{}; {} (default {}", option.about, option.accepts, option.default_value);
  if (option.paper_value != option.default_value) text += ", in paper " + option.paper_value;
  return text + ")";
}

}  // namespace

std::string with_dashes(std::string name) {
  std::replace(name.begin(), name.end(), '_', '-');
  return name;
}

absl::StatusOr<std::vector<OptionText>> library_options() {
  int32_t count = 0;
  CLI_RETURN_IF_ERROR(from_library(pkv_config_option_count(&count), About::kOptions));
  std::vector<OptionText> options;
  for (int32_t i = 0; i < count; ++i) {
    pkv_option_info info;
    CLI_RETURN_IF_ERROR(from_library(pkv_option_info_init(&info, sizeof info), About::kOptions));
    CLI_RETURN_IF_ERROR(from_library(pkv_config_option_info(i, &info), About::kOptions));
    options.push_back({info.name, info.accepts, info.default_value, info.paper_value, info.about});
  }
  return options;
}

absl::Status ConfigOptions::offer(CommandLine& line, std::span<const std::string_view> names) {
  CLI_ASSIGN_OR_RETURN(scratch_, create_config("default"));
  CLI_ASSIGN_OR_RETURN(const std::vector<OptionText> options, library_options());
  for (const OptionText& option : options) {
    if (std::find(names.begin(), names.end(), option.name) == names.end()) continue;
    line.custom(with_dashes(option.name), help_of(option),
                [this, name = option.name](const std::string& value) { return take(name, value); });
  }
  return absl::OkStatus();
}

void ConfigOptions::offer_profile(CommandLine& line) {
  line.custom("profile", "where options start from; default, paper (default default)",
              [this](const std::string& value) -> absl::Status {
                CLI_ASSIGN_OR_RETURN(const Config checked, create_config(value));
                profile_ = value;
                return absl::OkStatus();
              });
}

absl::Status ConfigOptions::take(const std::string& name, const std::string& value) {
  CLI_RETURN_IF_ERROR(from_library(pkv_config_set(scratch_.get(), name.c_str(), value.c_str()),
                                   About::kOptions,
                                   fmt::format("--{}={}", with_dashes(name), value)));
  given_[name] = value;
  return absl::OkStatus();
}

absl::StatusOr<Config> make_config(const std::string& profile, const OptionValues& values) {
  CLI_ASSIGN_OR_RETURN(Config config, create_config(profile));
  for (const auto& [name, value] : values) {
    CLI_RETURN_IF_ERROR(
        from_library(pkv_config_set(config.get(), name.c_str(), value.c_str()), About::kOptions));
  }
  return config;
}

OptionValues options_in(std::string_view command) {
  OptionValues options;
  std::string name;  // whose value comes next
  while (!command.empty()) {
    const size_t end = std::min(command.find_first_of(" ="), command.size());
    std::string word(command.substr(0, end));
    command.remove_prefix(std::min(end + 1, command.size()));
    if (word.rfind("--", 0) == 0) {
      name = word.substr(2);
      std::replace(name.begin(), name.end(), '-', '_');
    } else if (!word.empty()) {
      const bool is_known =
          std::find(std::begin(kCodecAndStepOptions), std::end(kCodecAndStepOptions), name) !=
          std::end(kCodecAndStepOptions);
      if (is_known) options[name] = word;
      name.clear();
    }
  }
  return options;
}

absl::StatusOr<std::string> config_value(const pkv_config* config, const char* name) {
  const char* value = nullptr;
  CLI_RETURN_IF_ERROR(from_library(pkv_config_get(config, name, &value), About::kOptions));
  return std::string(value);
}

absl::Status set_dimension(pkv_config* config, const char* name, int64_t value,
                           std::string_view source) {
  const std::string text = std::to_string(value);
  return from_library(
      pkv_config_set(config, name, text.c_str()), About::kInput,
      fmt::format("{}: {}={} (`pariskv info` lists what each backend takes)", source, name, value));
}

}  // namespace pkv::cli
