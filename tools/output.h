// Where results go. A file appears whole or not at all: it is written under another name in the
// same folder, flushed, then renamed; an existing one is replaced only if that was asked for.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"

namespace pkv::cli {

struct OutputOptions {
  std::string path;  // "": stdout
  bool is_forced = false;
};

class CommandLine;
// Offers --output and --force.
void offer_output(CommandLine& line, OutputOptions* options);

// Before long work: that the file may be written as far as that can be said. A usage error if it is
// there and --force is not, or is one of the `inputs`; a system error if its folder cannot be
// written to.
absl::Status check_output(const OutputOptions& options, const std::vector<std::string>& inputs);

// `text` to the file or to stdout.
absl::Status write_output(const OutputOptions& options, std::string_view text);

// Whether all that was printed has left; the last thing that the program does.
absl::Status flush_stdout();

}  // namespace pkv::cli
