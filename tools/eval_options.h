// The command line of `pariskv eval`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/command_line.h"
#include "tools/config_options.h"
#include "tools/method.h"
#include "tools/output.h"

namespace pkv::cli {

struct EvalOptions {
  Common common;
  OutputOptions output;
  ConfigOptions config;
  std::vector<std::string> traces;
  std::vector<std::string> methods;  // of kMethods, in the order asked for
  int64_t sink = 128;
  int64_t local = 512;
  int64_t fit_queries = 64;
  int64_t k = 0;
  std::vector<std::string> seeds;
  bool decodes = false;    // through the KV cache
  int64_t prefill = -1;    // below 0: not given
  int64_t window = -1;     // decoded tokens of a window; likewise
  double min_recall = -1;  // below 0: not asked for

  // The options of one method with one seed; `method` is paper or default.
  OptionValues values(const std::string& method, const std::string& seed) const;
};

inline const std::vector<std::string> kMethods = {"paper", "default", "exact", "full", "streaming"};

// False if --help was asked for.
absl::StatusOr<bool> parse_eval(const std::vector<std::string>& arguments, EvalOptions& options);

// "3" or "1..8".
absl::StatusOr<std::vector<std::string>> parse_seeds(const std::string& text);

}  // namespace pkv::cli
