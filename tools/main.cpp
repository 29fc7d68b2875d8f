// The `pariskv` program: picks the verb, and turns its outcome into text on stderr and an exit
// code.
#include <algorithm>
#include <array>
#include <cstdio>
#include <exception>
#include <iterator>
#include <new>
#include <string>
#include <vector>

#include "pariskv/pariskv.h"
#include "tools/cmd_bench.h"
#include "tools/command_line.h"
#include "tools/commands.h"
#include "tools/interrupt.h"
#include "tools/output.h"

namespace pkv::cli {
namespace {

constexpr auto kVerbs = [] {
  std::array<Command, std::size(kCommands) + 1> verbs = {};
  std::copy(std::begin(kCommands), std::end(kCommands), verbs.begin());
  verbs.back() = {"bench", "times of each stage, of steps and of full attention", run_bench};
  return verbs;
}();

std::string usage() {
  std::string text =
      "usage: pariskv VERB [OPTION...]\n"
      "       pariskv VERB --help\n"
      "       pariskv --version\n\nVerbs\n";
  for (const Command& command : kVerbs) {
    text += fmt::format("  {:<10}{}\n", command.name, command.about);
  }
  return text;
}

std::vector<std::string> verbs() {
  std::vector<std::string> names;
  for (const Command& command : kVerbs) names.emplace_back(command.name);
  return names;
}

absl::Status unknown_verb(const std::string& name) {
  std::string list;
  for (const std::string& verb : verbs()) list += (list.empty() ? "" : ", ") + verb;
  const std::string nearest = nearest_name(name, verbs());
  return usage_error("unknown verb \"{}\"{}; accepted are {}", name,
                     nearest.empty() ? "" : fmt::format(", did you mean {}?", nearest), list);
}

Outcome run(const std::vector<std::string>& arguments) {
  if (arguments.empty()) return usage_error("a verb is missing\n{}", usage());
  const std::string& first = arguments.front();
  if (first == "--version" || first == "--help" || first == "-h") {
    if (arguments.size() > 1) return usage_error("{}: stands alone", first);
    const std::string text =
        first == "--version" ? fmt::format("pariskv {}\n", pkv_version()) : usage();
    CLI_RETURN_IF_ERROR(write_output({}, text));
    return kDone;
  }
  for (const Command& command : kVerbs) {
    if (first == command.name) return command.run({arguments.begin() + 1, arguments.end()});
  }
  return unknown_verb(first);
}

Outcome run_guarded(const std::vector<std::string>& arguments) {
  try {
    return run(arguments);
  } catch (const std::bad_alloc&) {
    return failure(kSystem, "out of memory");
  } catch (const std::exception& error) {
    return system_error("unexpected: {}", error.what());
  }
}

int finish(Outcome outcome) {
  if (outcome.ok()) {
    const absl::Status flushed = flush_stdout();
    if (!flushed.ok()) outcome = flushed;
  }
  if (outcome.ok()) return *outcome;
  const auto text = outcome.status().message();
  std::fprintf(stderr, "pariskv: %.*s\n", static_cast<int>(text.size()), text.data());
  const ExitCode code = exit_code(outcome.status());
  return code == kInterrupted ? interrupt_exit_code() : code;
}

}  // namespace
}  // namespace pkv::cli

int main(int argc, char** argv) {
  pkv::cli::watch_signals();
  return pkv::cli::finish(pkv::cli::run_guarded({argv + std::min(argc, 1), argv + argc}));
}
