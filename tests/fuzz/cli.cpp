// The command line: arguments of the verbs with the most options, one a line behind the verb, and
// the texts that have a grammar of their own. Nothing is run.
#include <fcntl.h>
#include <unistd.h>

#include "tests/fuzz/fuzz.h"
#include "tools/cmd_bench_options.h"
#include "tools/eval_options.h"
#include "tools/reader.h"

namespace pkv::fuzz {
namespace {

template <class Value>
bool is_taken(const absl::StatusOr<Value>& outcome) {
  if (outcome.ok()) return true;
  // A folder for --output that cannot be written to is the system's refusal.
  const cli::ExitCode code = cli::exit_code(outcome.status());
  require(code == cli::kUsage || code == cli::kSystem, "a wrong command line is wrong use");
  require_text({outcome.status().message().data(), outcome.status().message().size()});
  return false;
}

void parse_eval(const std::vector<std::string>& arguments) {
  cli::EvalOptions options;
  const auto outcome = cli::parse_eval(arguments, options);
  if (!is_taken(outcome) || !*outcome) return;
  require(!options.traces.empty() && options.sink >= 0 && options.local >= 0 && options.k >= 0,
          "options of eval are within their ranges");
  for (const std::string& method : options.methods) {
    const bool is_known =
        std::find(cli::kMethods.begin(), cli::kMethods.end(), method) != cli::kMethods.end();
    require(is_known, "methods of eval are those there are");
  }
}

void parse_bench(const std::vector<std::string>& arguments) {
  cli::BenchOptions options;
  const auto outcome = cli::parse_bench(arguments, options);
  if (!is_taken(outcome) || !*outcome) return;
  require(options.batch >= 1 && options.kv_heads >= 1 && options.query_heads >= 1 &&
              !options.n.empty() && options.repeat >= 1,
          "options of bench are within their ranges");
}

void parse_texts(const std::string& text) {
  const auto integer = cli::parse_integer("number", text, -5, 1000);
  if (is_taken(integer)) require(*integer >= -5 && *integer <= 1000, "a number is in its range");
  const auto real = cli::parse_real("number", text, -1, 1e6);
  if (is_taken(real)) require(*real >= -1 && *real <= 1e6, "a number is in its range");
  const auto seeds = cli::parse_seeds(text);
  if (is_taken(seeds)) require(!seeds->empty(), "a list of seeds has one");
  std::size_t bytes = 0;
  const std::vector<std::string> parts = cli::split_list(text);
  for (const std::string& part : parts) bytes += part.size();
  require(bytes + parts.size() == text.size() + 1, "a list is its parts and commas");
  const cli::TensorName name = cli::split_tensor_name(text);
  require(text == (name.tensor.empty() ? name.path : name.path + ":" + name.tensor),
          "a file and a tensor are parts of the text");
  cli::nearest_name(text, cli::kMethods);
}

}  // namespace

std::vector<std::string> seeds() {
  return {"e\ntrace.safetensors\n--methods=paper,exact\n--seeds=1..3\n--k\n32",
          "e\na\nb\n--json\n--output\nx.json\n--force\n--sink=4\n--local=8\n--min-recall=0.9",
          "e\na\n--decode\n--prefill=100\n--window=10\n--tail=sampled\n--candidates=0.1",
          "b\n--stages=vote,select\n--n=1024,4096\n--threads=1,2\n--dtype=f16\n--seconds=0.5",
          "b\n--batch=4\n--kv-heads=2\n--query-heads=8\n--head-dim=64\n--rows=device\n--drift=0.1",
          "b\n--help",
          "e\n--backend=cpu\n--device=0\n--verbose\n--log-level=3\n--\n-x",
          "t1..8",
          "t-5",
          "t0x10",
          "t1e3",
          "tfile.npz:k",
          "ta,b,,c"};
}

void run(Input input) {
  // --help prints.
  static const int nowhere = ::dup2(::open("/dev/null", O_WRONLY | O_CLOEXEC), STDOUT_FILENO);
  require(nowhere == STDOUT_FILENO, "output can go nowhere");
  Bytes bytes(input);
  const uint8_t verb = bytes.byte();
  std::vector<std::string> arguments;
  while (!bytes.empty() && arguments.size() < 10) {
    // As from main: without zeros.
    arguments.emplace_back(bytes.text('\n').c_str());
  }
  if (verb == 'e') return parse_eval(arguments);
  if (verb == 'b') return parse_bench(arguments);
  for (const std::string& text : arguments) parse_texts(text);
}

}  // namespace pkv::fuzz
