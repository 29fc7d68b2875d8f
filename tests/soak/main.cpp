// pkv_soak: a day of serving in minutes (serving.h), held against the naive model step by step.
//   pkv_soak [--hours H] [--seed S] [--deep N] [--threads N] [--backend NAME]
// A step is a second of the simulated time, arrivals rise and fall every six hours. Answers of
// every N-th step (64) are compared with the model, lengths and regions of all. Prints a line an
// hour and what came of it; exit code 1 at the first mismatch, whose step the text names. A backend
// other than on the CPU gets the program's memory from its own allocator. PKV_CACHE_PLUGIN as in
// the model.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string>
#include <string_view>

#include "fmt/core.h"
#include "tests/common/folder.h"
#include "tests/soak/memory.h"
#include "tests/soak/serving.h"

namespace pkv::soak {
namespace {

constexpr int64_t kStepsPerHour = 3600;
constexpr double kMiB = 1 << 20;

struct Arguments {
  double hours = 1;
  int64_t seed = 1;
  int64_t deep = 64;
  std::string threads = "1";
  std::string backend = "cpu";
};

Arguments parse(int count, char** words) {
  Arguments out;
  for (int i = 1; i < count; i += 2) {
    const std::string_view name = words[i];
    const std::string value = i + 1 < count ? words[i + 1] : "";
    char* end = nullptr;
    const double number = std::strtod(value.c_str(), &end);
    const bool is_number = !value.empty() && *end == '\0' && number > 0 && number < 1e9;
    if (name == "--backend" && !value.empty()) {
      out.backend = value;
    } else if (name == "--threads" && is_number) {
      out.threads = value;
    } else if (name == "--hours" && is_number) {
      out.hours = number;
    } else if (name == "--seed" && is_number) {
      out.seed = static_cast<int64_t>(number);
    } else if (name == "--deep" && is_number) {
      out.deep = std::max<int64_t>(1, static_cast<int64_t>(number));
    } else {
      fmt::print(stderr, "{} {}: no such option, or its value is none\n", name, value);
      std::exit(2);
    }
  }
  return out;
}

std::string percentiles(std::vector<float> times) {
  if (times.empty()) return fmt::format("{:>8} {:>8} {:>8}", "-", "-", "-");
  std::sort(times.begin(), times.end());
  const auto at = [&times](double share) {
    return times[static_cast<std::size_t>(share * static_cast<double>(times.size() - 1))];
  };
  return fmt::format("{:8.1f} {:8.1f} {:8.1f}", at(0.5), at(0.99), at(0.999));
}

double resident() { return static_cast<double>(resident_bytes()) / kMiB; }

int run(const Arguments& arguments) {
  cache_model::Machine machine(arguments.backend.c_str());
  if (arguments.backend == "cuda" || arguments.backend == "hip") {
    cache_model::Tensor::device_type =
        arguments.backend == "cuda" ? PKV_DEVICE_CUDA : PKV_DEVICE_ROCM;
    use_device_memory(machine.device.get(), std::size_t{512} << 20);
  } else if (std::getenv("PKV_CACHE_PLUGIN") == nullptr) {
    check(pkv_device_set(machine.device.get(), "threads", arguments.threads.c_str()));
  }
  const test::Folder folder;
  cache_model::World world(machine, serving_shape());
  Serving serving(world, folder.path(), static_cast<uint64_t>(arguments.seed), arguments.deep);
  const auto steps = static_cast<int64_t>(arguments.hours * kStepsPerHour);
  std::vector<float> first, last, hour;  // microseconds: of the first and the last quarter
  double peaks[4] = {};                  // resident MiB, by quarter
  int64_t usage_peaks[4] = {};
  fmt::print("seed {}, {} steps on {}\n", arguments.seed, steps, arguments.backend);
  fmt::print("{:>5} {:>9} {:>12} {:>12} {:>8} {:>8} {:>8}\n", "hour", "sequences", "library MiB",
             "resident MiB", "p50 us", "p99 us", "p99.9 us");
  int64_t at = 0;
  try {
    for (; at < steps; ++at) {
      const double time = static_cast<double>(at) / kStepsPerHour;
      const double load = (1 - std::cos(time * 2 * 3.14159265358979 / 6)) / 2;
      const double microseconds = serving.step(0.01 + 0.06 * load);
      const auto quarter = static_cast<std::size_t>(at * 4 / steps);
      if (microseconds >= 0) {
        hour.push_back(static_cast<float>(microseconds));
        if (quarter == 0) first.push_back(hour.back());
        if (quarter == 3) last.push_back(hour.back());
      }
      if (at % 64 == 0) {
        peaks[quarter] = std::max(peaks[quarter], resident());
        usage_peaks[quarter] = std::max(usage_peaks[quarter], world.usage().total);
      }
      if ((at + 1) % kStepsPerHour == 0 || at + 1 == steps) {
        fmt::print("{:5.2f} {:9} {:12.2f} {:12.1f} {}\n",
                   static_cast<double>(at + 1) / kStepsPerHour, world.stats().sequences,
                   static_cast<double>(world.usage().total) / kMiB, resident(), percentiles(hour));
        std::fflush(stdout);
        hour.clear();
      }
    }
    serving.finish();
  } catch (const std::exception& error) {
    fmt::print("MISMATCH at step {}: {}\n", at, error.what());
    return 1;
  }
  const Counts& c = serving.counts();
  fmt::print(
      "{} changing calls: {} steps that decoded {} tokens, {} tokens of prompts, {} forks, "
      "{} rollbacks ({} whole answers), {} refits, {} evictions to files, {} loads, {} "
      "removals; {} refused for want of memory and made again\n",
      c.calls, c.steps, c.decoded, c.prefilled, c.forks, c.rollbacks, c.retries, c.refits, c.saves,
      c.loads, c.removed, c.out_of_memory);
  fmt::print("mismatches 0 ({} steps and {} loads compared in full)\n", c.compared, c.loads);
  for (std::size_t i = 0; i < 4; ++i) {
    fmt::print("quarter {}: library at most {:.2f} MiB, resident at most {:.1f} MiB\n", i + 1,
               static_cast<double>(usage_peaks[i]) / kMiB, peaks[i]);
  }
  fmt::print("decoding us, p50 p99 p99.9: first quarter {}, last quarter {}\n", percentiles(first),
             percentiles(last));
  return 0;
}

}  // namespace
}  // namespace pkv::soak

int main(int count, char** words) {
  const auto arguments = pkv::soak::parse(count, words);
  try {
    return pkv::soak::run(arguments);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 2;
  }
}
