// pkv_cache_model: random operations on a cache against a naive model of it. Stops at the first
// difference, shortens the operations that lead to it, and prints them.
//   pkv_cache_model [--operations N] [--seed S] [--sequences M] [--backend NAME] [--shape NAME]
//                   [--deep N] [--shrink SECONDS] [--trace] [--list]
// The operations are shared out evenly over the shapes (--list), or all on one.
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>

#include "fmt/core.h"
#include "tests/common/folder.h"
#include "tests/conformance/random.h"
#include "tests/model/judge.h"
#include "tests/model/operations.h"
#include "tests/model/shapes.h"

namespace pkv::cache_model {
namespace {

using Clock = std::chrono::steady_clock;

struct Arguments {
  int64_t operations = 10000;
  int64_t seed = 1;
  int64_t sequences = 0;  // 0: as the shape says
  int64_t deep = 32;
  int64_t shrink = 60;
  std::string backend = "cpu";
  std::string shape;
  bool trace = false;
  bool list = false;
};

int64_t number(std::string_view name, std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc() && end == text.data() + text.size() && value >= 0) return value;
  fmt::print(stderr, "{} {}: accepted: a whole number from 0 on\n", name, text);
  std::exit(2);
}

Arguments parse(int count, char** words) {
  Arguments out;
  for (int i = 1; i < count; ++i) {
    const std::string_view name = words[i];
    if (name == "--trace") {
      out.trace = true;
    } else if (name == "--list") {
      out.list = true;
    } else if (i + 1 == count) {
      fmt::print(stderr, "{}: no such option, or its value is missing\n", name);
      std::exit(2);
    } else {
      const std::string_view value = words[++i];
      if (name == "--operations") {
        out.operations = number(name, value);
      } else if (name == "--seed") {
        out.seed = number(name, value);
      } else if (name == "--sequences") {
        out.sequences = number(name, value);
      } else if (name == "--deep") {
        out.deep = std::max<int64_t>(1, number(name, value));
      } else if (name == "--shrink") {
        out.shrink = number(name, value);
      } else if (name == "--backend") {
        out.backend = value;
      } else if (name == "--shape") {
        out.shape = value;
      } else {
        fmt::print(stderr, "{}: no such option\n", name);
        std::exit(2);
      }
    }
  }
  return out;
}

struct Failure {
  std::size_t at;  // operation; their number: at the end
  std::string text;
};

class Run {
 public:
  Run(Machine& machine, const Shape& shape, const Arguments& arguments)
      : machine_(machine), shape_(shape), arguments_(arguments) {}

  std::optional<Failure> operator()(const std::vector<Operation>& operations, int64_t deep,
                                    std::vector<std::string>* log = nullptr) {
    std::size_t at = 0;
    std::optional<Runner> runner;
    try {
      runner.emplace(machine_, shape_, folder_.path(), deep);
      for (; at < operations.size(); ++at) {
        try {
          runner->apply(operations[at]);
        } catch (...) {
          if (log != nullptr) log->push_back(runner->last());
          throw;
        }
        if (log != nullptr) log->push_back(runner->last());
        if (arguments_.trace) fmt::print("{:7} {}\n", at, runner->last());
      }
      runner->finish();
      appended_ = runner->appended();
      return std::nullopt;
    } catch (const std::exception& error) {
      return Failure{at, error.what()};
    }
  }

  int64_t appended() const { return appended_; }

  // Drops ever smaller pieces as long as what is left fails in the same thing. Looks deep after
  // every operation.
  void shrink(std::vector<Operation> operations, const std::string& text) {
    const auto end = Clock::now() + std::chrono::seconds(arguments_.shrink);
    const std::string thing = text.substr(0, text.find_first_of(" :"));
    const auto fails = [&](const std::optional<Failure>& failure) {
      return failure && failure->text.substr(0, thing.size()) == thing;
    };
    int64_t deep = 1;
    if (!fails((*this)(operations, deep))) deep = arguments_.deep;
    for (std::size_t piece = operations.size() / 2; piece > 0; piece /= 2) {
      for (std::size_t at = 0; at < operations.size() && Clock::now() < end;) {
        std::vector<Operation> fewer = operations;
        const auto first = fewer.begin() + static_cast<int64_t>(at);
        fewer.erase(first, first + static_cast<int64_t>(std::min(piece, operations.size() - at)));
        const std::optional<Failure> failure = (*this)(fewer, deep);
        if (!fails(failure)) {
          at += piece;
          continue;
        }
        fewer.resize(std::min(fewer.size(), failure->at + 1));
        operations = std::move(fewer);
      }
    }
    std::vector<std::string> log;
    const std::optional<Failure> failure = (*this)(operations, deep, &log);
    fmt::print("shortened to {} operations:\n", operations.size());
    for (const std::string& line : log) fmt::print("  {}\n", line);
    fmt::print("  {}\n", failure ? failure->text : "no longer fails");
  }

 private:
  Machine& machine_;
  Shape shape_;
  const Arguments& arguments_;
  test::Folder folder_;
  int64_t appended_ = 0;
};

// Whether it went well.
bool run_shape(Machine& machine, Shape shape, const Arguments& arguments, int64_t count) {
  if (arguments.sequences > 0) shape.sequences = static_cast<int32_t>(arguments.sequences);
  const uint64_t seed = static_cast<uint64_t>(arguments.seed) ^ conformance::hash_of(shape.name);
  const std::vector<Operation> operations = random_operations(seed, count);
  Run run(machine, shape, arguments);
  std::vector<std::string> log;
  const auto begin = Clock::now();
  const std::optional<Failure> failure = run(operations, arguments.deep, &log);
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  if (!failure) {
    fmt::print("{}: {} operations, {} tokens appended, {:.1f} s\n", shape.name, count,
               run.appended(), seconds);
    return true;
  }
  fmt::print("{}: FAILED at operation {}: {}\n", shape.name, failure->at, failure->text);
  fmt::print("again: pkv_cache_model --backend {} --shape {} --seed {} --operations {}\n",
             arguments.backend, shape.name, arguments.seed, count);
  const std::size_t first = log.size() > 20 ? log.size() - 20 : 0;
  for (std::size_t i = first; i < log.size(); ++i) fmt::print("  {:7} {}\n", i, log[i]);
  std::vector<Operation> failing = operations;
  failing.resize(std::min(failing.size(), failure->at + 1));
  if (arguments.shrink > 0) run.shrink(std::move(failing), failure->text);
  return false;
}

int run(const Arguments& arguments) {
  std::vector<Shape> shapes;
  for (const Shape& shape : model_shapes()) {
    if (arguments.shape.empty() || arguments.shape == shape.name) shapes.push_back(shape);
  }
  if (shapes.empty()) {
    fmt::print(stderr, "--shape {}: no such shape; --list has them\n", arguments.shape);
    return 2;
  }
  if (arguments.list) {
    for (const Shape& shape : shapes) fmt::print("{}\n", shape.name);
    return 0;
  }
  fmt::print("seed {}\n", arguments.seed);
  Machine machine(arguments.backend.c_str());
  const auto parts = static_cast<int64_t>(shapes.size());
  bool is_well = true;
  for (int64_t i = 0; i < parts; ++i) {
    const int64_t count = arguments.operations * (i + 1) / parts - arguments.operations * i / parts;
    is_well &= run_shape(machine, shapes[static_cast<std::size_t>(i)], arguments, count);
  }
  return is_well ? 0 : 1;
}

}  // namespace
}  // namespace pkv::cache_model

int main(int count, char** words) {
  return pkv::cache_model::run(pkv::cache_model::parse(count, words));
}
