// The command line of pkv-conformance.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace pkv::conformance {

struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Options {
  std::string backend;  // name, or path with a '/' in it
  std::string filter = "*";
  std::string junit;               // file; "" for none
  std::string html;                // likewise
  std::string expected;            // list of expected failures (expected.h); "" for none
  std::vector<std::string> merge;  // files of --json, in place of a run
  std::string golden;              // folder; "" for the vectors inside the program
  std::vector<std::pair<std::string, std::string>> set;  // device options, in order
  uint64_t seed = 1;
  int64_t random = 0;        // cases of random shapes in place of the tables'
  int64_t shard = 1;         // this one,
  int64_t shards = 1;        // of so many
  int64_t time_limit = 120;  // seconds for a case; 0: none
  bool in_process = false;
  bool faults = false;  // in place of cases
  bool list = false;
  bool json = false;
  bool paths = false;
  bool help = false;
  bool version = false;
};

// `arguments` without the program's name. Throws UsageError.
Options parse_options(const std::vector<std::string>& arguments);
const char* usage();

// Whether `text` is matched by `glob`: * stands for any characters, ? for one.
bool matches(const std::string& glob, const std::string& text);

}  // namespace pkv::conformance
