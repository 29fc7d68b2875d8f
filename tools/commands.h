// The verbs. Each takes the arguments behind its name and gives the exit code, or a status that
// says which one and why.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/status.h"

namespace pkv::cli {

using Arguments = std::vector<std::string>;
using Outcome = absl::StatusOr<ExitCode>;

Outcome run_info(const Arguments& arguments);
Outcome run_encode(const Arguments& arguments);
Outcome run_retrieve(const Arguments& arguments);
Outcome run_eval(const Arguments& arguments);
Outcome run_bench(const Arguments& arguments);
Outcome run_inspect(const Arguments& arguments);
Outcome run_report(const Arguments& arguments);
Outcome run_tune(const Arguments& arguments);

struct Command {
  const char* name;
  const char* about;
  Outcome (*run)(const Arguments& arguments);
};

inline constexpr Command kCommands[] = {
    {"info", "backends, devices, shapes, options", run_info},
    {"encode", "keys of a file into an index (.pkv)", run_encode},
    {"retrieve", "the best keys of an index for queries", run_retrieve},
    {"eval", "recall, error and speed on traces of a model", run_eval},
    {"bench", "times of each stage, of steps and of full attention", run_bench},
    {"inspect", "an index file, or why a trace does well or badly", run_inspect},
    {"report", "results as a page with plots", run_report},
    {"tune", "the cheapest setting that meets a target; a model of cost", run_tune},
};

}  // namespace pkv::cli
