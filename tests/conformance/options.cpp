#include "tests/conformance/options.h"

#include <charconv>

#include "fmt/core.h"

namespace pkv::conformance {
namespace {

template <class Number>
Number number(const std::string& option, const std::string& text, const char* accepted) {
  Number value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error == std::errc() && stop == end) return value;
  throw UsageError(fmt::format("{} {}: accepted: {}", option, text, accepted));
}

void set_shard(Options& options, const std::string& text) {
  constexpr const char* kAccepted = "I/N with 1 <= I <= N";
  const size_t slash = text.find('/');
  if (slash == std::string::npos) {
    throw UsageError(fmt::format("--shard {}: accepted: {}", text, kAccepted));
  }
  options.shard = number<int64_t>("--shard", text.substr(0, slash), kAccepted);
  options.shards = number<int64_t>("--shard", text.substr(slash + 1), kAccepted);
  if (options.shard < 1 || options.shard > options.shards) {
    throw UsageError(fmt::format("--shard {}: accepted: {}", text, kAccepted));
  }
}

void set_time_limit(Options& options, const std::string& text) {
  constexpr const char* kAccepted = "0..86400 seconds";
  options.time_limit = number<int64_t>("--time-limit", text, kAccepted);
  if (options.time_limit < 0 || options.time_limit > 86400) {
    throw UsageError(fmt::format("--time-limit {}: accepted: {}", text, kAccepted));
  }
}

void set_device_option(Options& options, const std::string& text) {
  const size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0 || equals + 1 == text.size()) {
    throw UsageError(fmt::format("--set {}: accepted: OPTION=VALUE", text));
  }
  options.set.emplace_back(text.substr(0, equals), text.substr(equals + 1));
}

bool set_flag(Options& options, const std::string& name) {
  if (name == "--list") return options.list = true;
  if (name == "--faults") return options.faults = true;
  if (name == "--json") return options.json = true;
  if (name == "--paths") return options.paths = true;
  if (name == "--in-process") return options.in_process = true;
  if (name == "--help" || name == "-h") return options.help = true;
  if (name == "--version") return options.version = true;
  return false;
}

void set_value(Options& options, const std::string& name, const std::string& value) {
  if (name == "--backend") {
    options.backend = value;
  } else if (name == "--set") {
    set_device_option(options, value);
  } else if (name == "--filter") {
    options.filter = value;
  } else if (name == "--junit") {
    options.junit = value;
  } else if (name == "--html") {
    options.html = value;
  } else if (name == "--expected") {
    options.expected = value;
  } else if (name == "--merge") {
    options.merge.push_back(value);
  } else if (name == "--golden") {
    options.golden = value;
  } else if (name == "--time-limit") {
    set_time_limit(options, value);
  } else if (name == "--seed") {
    options.seed = number<uint64_t>(name, value, "0..18446744073709551615");
  } else if (name == "--random") {
    options.random = number<int64_t>(name, value, "1..10000000");
    if (options.random < 1 || options.random > 10000000) {
      throw UsageError(fmt::format("--random {}: accepted: 1..10000000", value));
    }
  } else {
    set_shard(options, value);
  }
}

bool takes_value(const std::string& name) {
  for (const char* known :
       {"--backend", "--set", "--filter", "--junit", "--html", "--expected", "--golden", "--merge",
        "--seed", "--random", "--shard", "--time-limit"}) {
    if (name == known) return true;
  }
  return false;
}

}  // namespace

Options parse_options(const std::vector<std::string>& arguments) {
  Options options;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const size_t equals = arguments[i].find('=');
    const std::string name = arguments[i].substr(0, equals);
    if (equals == std::string::npos && set_flag(options, name)) continue;
    if (!takes_value(name)) {
      throw UsageError(fmt::format("no option {}; see --help", arguments[i]));
    }
    if (equals == std::string::npos && i + 1 == arguments.size()) {
      throw UsageError(fmt::format("{} lacks its value", name));
    }
    const std::string value =
        equals == std::string::npos ? arguments[++i] : arguments[i].substr(equals + 1);
    if (value.empty()) throw UsageError(fmt::format("{} lacks its value", name));
    set_value(options, name, value);
  }
  if (options.backend.empty() && options.merge.empty() && !options.list && !options.help &&
      !options.version) {
    throw UsageError("--backend NAME or --backend PATH is needed; see --help");
  }
  return options;
}

const char* usage() {
  return R"(pkv-conformance --backend NAME|PATH [options]

Holds a backend against the reference, stage by stage: each stage gets the reference's output of the
stage before. Exact results are compared bit by bit, bounded ones within the tolerances of
docs/numerics.md. What the backend refuses as unimplemented is skipped, with its reason.

  --backend NAME|PATH  a backend of `pariskv info`, or a library (a path has a '/' in it)
  --set OPTION=VALUE   an option of its device, as pkv_device_set takes it; may be repeated
  --filter GLOB        only cases whose name matches; * and ? as in a shell, * also matches '/'
  --shard I/N          only every N-th case, beginning with the I-th (1 <= I <= N)
  --seed N             other numbers in the cases (default 1); golden vectors stay as they are
  --random N           N cases of random shapes instead, random/1/.. to random/N/..; what they are
                       follows from the seed and their number
  --faults             no cases: memory runs out, a kernel fails; each in a process of its own
  --golden DIR         golden vectors from the .json files of DIR instead of those inside
  --list               print the names of the cases, one a line, and end
  --expected FILE      failures to expect: lines of GLOB: REASON; one of these that passes is a
                       failure, and so is a line that no case matches
  --time-limit SECONDS for one case (default 120, 0: none); then it has failed, the next one runs
  --in-process         no child process: for debuggers; a crash or hang of the backend is one of
                       this program
  --junit FILE         also write the results as JUnit XML
  --html FILE          also write them as one page that needs nothing else and can be printed
  --paths              which kernels or other paths each case reaches, of backends that tell them;
                       of a run of all cases it is a failure if none reached one
  --json               print the results as one JSON object; the report goes to stderr
  --merge FILE         runs nothing: the report is of what --json printed before; may be repeated,
                       as for shards
  --version, --help

Cases run in a child process. Where it crashes, ends or hangs, the case has failed, and another
child goes on with the next one.

The last line of the report is `N passed, N failed, N skipped`, and with --expected
`, N failed as expected`.
Exit code: 0 no case failed, 1 some did, 2 wrong use, 4 the backend is not available, 5 a file could
not be read or written.
)";
}

bool matches(const std::string& glob, const std::string& text) {
  // The last * and where it began to match: on a mismatch it takes one character more.
  size_t g = 0;
  size_t t = 0;
  size_t star = std::string::npos;
  size_t taken = 0;
  while (t < text.size()) {
    if (g < glob.size() && glob[g] == '*') {
      star = g++;
      taken = t;
    } else if (g < glob.size() && (glob[g] == '?' || glob[g] == text[t])) {
      ++g;
      ++t;
    } else if (star != std::string::npos) {
      g = star + 1;
      t = ++taken;
    } else {
      return false;
    }
  }
  while (g < glob.size() && glob[g] == '*') ++g;
  return g == glob.size();
}

}  // namespace pkv::conformance
