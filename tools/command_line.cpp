#include "tools/command_line.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <exception>
#include <numeric>
#include <sstream>
#include <utility>

#include "boost/program_options/cmdline.hpp"
#include "boost/program_options/errors.hpp"
#include "boost/program_options/parsers.hpp"
#include "boost/program_options/positional_options.hpp"
#include "boost/program_options/value_semantic.hpp"
#include "tools/status.h"

namespace pkv::cli {
namespace {

namespace po = boost::program_options;

constexpr unsigned kHelpWidth = 100;
constexpr auto kStyle =
    po::command_line_style::unix_style & ~po::command_line_style::allow_guessing;

// "--vote_group=sum" -> "--vote-group=sum"; what is no option stays as it is.
std::vector<std::string> all_with_dashes(std::vector<std::string> arguments) {
  for (std::string& argument : arguments) {
    if (argument == "--") break;
    if (argument.rfind("--", 0) != 0) continue;
    const size_t end = std::min(argument.find('='), argument.size());
    std::replace(argument.begin(), argument.begin() + static_cast<std::ptrdiff_t>(end), '_', '-');
  }
  return arguments;
}

// Insertions, deletions, replacements of one character.
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = row[0]++;
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, diagonal + 1});
    }
  }
  return row.back();
}

}  // namespace

CommandLine::CommandLine(std::string verb, std::string usage, std::string about)
    : verb_(std::move(verb)),
      usage_(std::move(usage)),
      about_(std::move(about)),
      options_("Options", kHelpWidth, kHelpWidth / 2) {}

void CommandLine::add(const std::string& name, const std::string& about, bool has_value,
                      std::function<absl::Status(const std::string&)> set) {
  if (has_value) {
    options_.add_options()(name.c_str(), po::value<std::string>(), about.c_str());
  } else {
    options_.add_options()(name.c_str(), about.c_str());
  }
  entries_.push_back({name.substr(0, name.find(',')), std::move(set)});
}

void CommandLine::flag(const std::string& name, bool* target, const std::string& about) {
  add(name, about, false, [target](const std::string&) {
    *target = true;
    return absl::OkStatus();
  });
}

void CommandLine::text(const std::string& name, std::string* target, const std::string& about) {
  const std::string shown =
      target->empty() ? about : fmt::format("{} (default {})", about, *target);
  add(name, shown, true, [full = name.substr(0, name.find(',')), target](const std::string& value) {
    if (value.empty()) return usage_error("--{}: the value is empty", full);
    *target = value;
    return absl::OkStatus();
  });
}

void CommandLine::integer(const std::string& name, int64_t* target, int64_t min, int64_t max,
                          const std::string& about) {
  add(name, fmt::format("{}; {}..{} (default {})", about, min, max, *target), true,
      [=](const std::string& value) -> absl::Status {
        CLI_ASSIGN_OR_RETURN(*target, parse_integer(name, value, min, max));
        return absl::OkStatus();
      });
}

void CommandLine::real(const std::string& name, double* target, double min, double max,
                       const std::string& about) {
  add(name, fmt::format("{}; {}..{}", about, min, max), true,
      [=](const std::string& value) -> absl::Status {
        CLI_ASSIGN_OR_RETURN(*target, parse_real(name, value, min, max));
        return absl::OkStatus();
      });
}

void CommandLine::custom(const std::string& name, const std::string& about,
                         std::function<absl::Status(const std::string&)> set) {
  add(name, about, true, std::move(set));
}

void CommandLine::common(Common* target) {
  text("backend", &target->backend, "the backend by name, or auto");
  integer("device", &target->device, 0, INT32_MAX, "ordinal among the backend's devices");
  flag("json", &target->is_json, "print JSON on stdout");
  flag("verbose,v", &target->is_verbose, "like --log-level 2");
  integer("log-level", &target->log_level, 0, 3,
          "messages on stderr: 0 errors, 1 warnings, 2 what was chosen, 3 everything");
}

void CommandLine::positional(std::vector<std::string>* target, size_t min, size_t max,
                             const std::string& what) {
  positional_ = target;
  positional_min_ = min;
  positional_max_ = max;
  positional_what_ = what;
}

std::string CommandLine::unknown_option(const std::string& name) const {
  const std::string bare = name.substr(std::min(name.find_first_not_of('-'), name.size()));
  std::vector<std::string> names;
  for (const Entry& entry : entries_) names.push_back(entry.name);
  const std::string nearest = nearest_name(bare, names);
  return fmt::format("unknown option {}{}; see pariskv {} --help", name,
                     nearest.empty() ? "" : fmt::format(", did you mean --{}?", nearest), verb_);
}

absl::Status CommandLine::take_positional(std::vector<std::string> given) const {
  if (given.size() < positional_min_ || given.size() > positional_max_) {
    std::string wanted = std::to_string(positional_min_);
    if (positional_max_ == SIZE_MAX) {
      wanted = fmt::format("at least {}", positional_min_);
    } else if (positional_max_ > positional_min_) {
      wanted = fmt::format("{}..{}", positional_min_, positional_max_);
    }
    return usage_error(
        "{} arguments without a name{}: accepted {}; usage: pariskv {} {}", given.size(),
        given.empty() ? "" : fmt::format(" (\"{}\")", given.back()),
        positional_ == nullptr ? "is none" : fmt::format("is {}: {}", wanted, positional_what_),
        verb_, usage_);
  }
  if (positional_ != nullptr) *positional_ = std::move(given);
  return absl::OkStatus();
}

absl::StatusOr<bool> CommandLine::parse(const std::vector<std::string>& arguments) {
  bool wants_help = false;
  flag("help,h", &wants_help, "this text");
  const po::positional_options_description none;
  std::vector<std::string> unnamed;
  std::vector<std::string> seen;
  try {
    const po::parsed_options parsed = po::command_line_parser(all_with_dashes(arguments))
                                          .options(options_)
                                          .style(kStyle)
                                          .allow_unregistered()
                                          .run();
    for (const po::option& option : parsed.options) {
      if (option.position_key >= 0) {
        unnamed.push_back(option.value.front());
        continue;
      }
      const auto entry = std::find_if(entries_.begin(), entries_.end(), [&](const Entry& known) {
        return known.name == option.string_key;
      });
      if (option.unregistered || entry == entries_.end()) {
        return failure(kUsage, unknown_option(option.original_tokens.front()));
      }
      if (std::find(seen.begin(), seen.end(), entry->name) != seen.end()) {
        return usage_error("--{} is given twice", entry->name);
      }
      seen.push_back(entry->name);
      CLI_RETURN_IF_ERROR(entry->set(option.value.empty() ? "" : option.value.front()));
    }
  } catch (const po::error& error) {
    return usage_error("{}; see pariskv {} --help", error.what(), verb_);
  }
  if (wants_help) {
    std::ostringstream text;
    text << "usage: pariskv " << verb_ << ' ' << usage_ << "\n\n" << about_ << "\n\n" << options_;
    std::fputs(text.str().c_str(), stdout);
    return false;
  }
  CLI_RETURN_IF_ERROR(take_positional(std::move(unnamed)));
  return true;
}

absl::StatusOr<int64_t> parse_integer(std::string_view name, std::string_view text, int64_t min,
                                      int64_t max) {
  int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stop != end || value < min || value > max) {
    return usage_error("--{}={}: accepted are whole numbers {}..{}", name, text, min, max);
  }
  return value;
}

absl::StatusOr<double> parse_real(std::string_view name, std::string_view text, double min,
                                  double max) {
  double value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stop != end || !(value >= min && value <= max)) {
    return usage_error("--{}={}: accepted are numbers {}..{}", name, text, min, max);
  }
  return value;
}

std::vector<std::string> split_list(std::string_view text) {
  std::vector<std::string> parts;
  for (;;) {
    const size_t comma = std::min(text.find(','), text.size());
    parts.emplace_back(text.substr(0, comma));
    if (comma == text.size()) return parts;
    text.remove_prefix(comma + 1);
  }
}

std::string nearest_name(std::string_view name, const std::vector<std::string>& names) {
  constexpr size_t kLongest = 64;  // no misspelling; keeps the work small
  std::string nearest;
  size_t fewest = std::max<size_t>(2, name.size() / 3) + 1;
  if (name.size() > kLongest) return nearest;
  for (const std::string& candidate : names) {
    const size_t edits = edit_distance(name, candidate);
    if (edits < fewest && edits < name.size()) {
      fewest = edits;
      nearest = candidate;
    }
  }
  return nearest;
}

}  // namespace pkv::cli
