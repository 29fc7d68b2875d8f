// pariskv bench: times of each stage.
#pragma once

#include "tools/commands.h"

namespace pkv::cli {

Outcome run_bench(const Arguments& arguments);

}  // namespace pkv::cli
