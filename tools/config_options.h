// The library's options as options of the program: names, accepted values, defaults and texts come
// from pkv_config_option_info, so that both say the same.
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tools/command_line.h"
#include "tools/handles.h"

namespace pkv::cli {

// As pkv_option_info.
struct OptionText {
  std::string name;
  std::string accepts;
  std::string default_value;
  std::string paper_value;
  std::string about;
};
absl::StatusOr<std::vector<OptionText>> library_options();

// Names as the library has them, of all that decides the records and a step of a trace.
inline constexpr std::string_view kCodecAndStepOptions[] = {
    "codec",  "vote",       "center",       "balance", "fit",        "rounds",
    "seed",   "value_norm", "tail",         "k",       "candidates", "vote_group",
    "rho_of", "rank",       "tail_samples", "share",   "k_min"};

using OptionValues = std::map<std::string, std::string, std::less<>>;

class ConfigOptions {
 public:
  // Offers those of the library's options that `names` has. A value is checked when it is given.
  absl::Status offer(CommandLine& line, std::span<const std::string_view> names);
  // Offers --profile.
  void offer_profile(CommandLine& line);

  const std::string& profile() const { return profile_; }
  const OptionValues& given() const { return given_; }
  bool has(std::string_view name) const { return given_.find(name) != given_.end(); }

 private:
  absl::Status take(const std::string& name, const std::string& value);

  Config scratch_;
  std::string profile_ = "default";
  OptionValues given_;
};

// A config of `profile` with these values.
absl::StatusOr<Config> make_config(const std::string& profile, const OptionValues& values);
// The library's options, but for head_dim and the like, that a command line of the program gives.
OptionValues options_in(std::string_view command);
// "value_norm" as on the command line: "value-norm".
std::string with_dashes(std::string name);
absl::StatusOr<std::string> config_value(const pkv_config* config, const char* name);

// A dimension that came from a file; `source` is the file's name.
absl::Status set_dimension(pkv_config* config, const char* name, int64_t value,
                           std::string_view source);

}  // namespace pkv::cli
