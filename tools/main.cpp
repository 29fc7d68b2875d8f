// The `pariskv` program: picks the verb, and turns its outcome into text on stderr and an exit
// code.
#include <cstdio>
#include <exception>
#include <new>
#include <string>
#include <vector>

#include "pariskv/pariskv.h"
#include "tools/command_line.h"
#include "tools/commands.h"
#include "tools/interrupt.h"
#include "tools/output.h"

namespace pkv::cli {
namespace {

std::string usage() {
  std::string text =
      "usage: pariskv VERB [OPTION...]\n"
      "       pariskv VERB --help\n"
      "       pariskv --version\n\nVerbs\n";
  for (const Command& command : kCommands) {
    text += fmt::format("  {:<10}{}\n", command.name, command.about);
  }
  return text;
}

std::vector<std::string> verbs() {
  std::vector<std::string> names;
  for (const Command& command : kCommands) names.emplace_back(command.name);
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
  for (const Command& command : kCommands) {
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
