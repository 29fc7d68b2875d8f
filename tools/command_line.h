// The options of one verb: declared once, parsed strictly, shown by --help.
// Names are written with '-', and '_' is taken as well. Nothing is abbreviated or given twice.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "boost/program_options/options_description.hpp"

namespace pkv::cli {

// What every verb takes.
struct Common {
  std::string backend = "auto";
  int64_t device = 0;
  bool is_json = false;
  bool is_verbose = false;
  int64_t log_level = 1;  // of the library's messages on stderr
};

class CommandLine {
 public:
  // `verb` and what follows it in the usage line; `about` is the first line of --help.
  CommandLine(std::string verb, std::string usage, std::string about);

  // Each writes `target` only if the option is given; `target` holds the default, which is shown.
  void flag(const std::string& name, bool* target, const std::string& about);
  void text(const std::string& name, std::string* target, const std::string& about);
  void integer(const std::string& name, int64_t* target, int64_t min, int64_t max,
               const std::string& about);
  // min <= value <= max
  void real(const std::string& name, double* target, double min, double max,
            const std::string& about);
  // Any text; `set` may refuse it.
  void custom(const std::string& name, const std::string& about,
              std::function<absl::Status(const std::string&)> set);
  void common(Common* target);
  // Arguments without a name, between `min` and `max` of them.
  void positional(std::vector<std::string>* target, size_t min, size_t max,
                  const std::string& what);

  // False if --help was asked for and is printed. Errors are of usage.
  absl::StatusOr<bool> parse(const std::vector<std::string>& arguments);

 private:
  struct Entry {
    std::string name;  // without dashes
    std::function<absl::Status(const std::string&)> set;
  };
  void add(const std::string& name, const std::string& about, bool has_value,
           std::function<absl::Status(const std::string&)> set);
  std::string unknown_option(const std::string& name) const;
  absl::Status take_positional(std::vector<std::string> given) const;

  std::string verb_;
  std::string usage_;
  std::string about_;
  boost::program_options::options_description options_;
  std::vector<Entry> entries_;
  std::vector<std::string>* positional_ = nullptr;
  size_t positional_min_ = 0;
  size_t positional_max_ = 0;
  std::string positional_what_;
};

// The whole text as a number of min..max, or an error that names both.
absl::StatusOr<int64_t> parse_integer(std::string_view name, std::string_view text, int64_t min,
                                      int64_t max);
absl::StatusOr<double> parse_real(std::string_view name, std::string_view text, double min,
                                  double max);

// The texts between commas; empty ones are kept.
std::vector<std::string> split_list(std::string_view text);

// The name that takes the fewest edits to reach from `name`; "" if none is near.
std::string nearest_name(std::string_view name, const std::vector<std::string>& names);

}  // namespace pkv::cli
