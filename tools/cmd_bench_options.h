// What `pariskv bench` was asked for.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/command_line.h"
#include "tools/config_options.h"
#include "tools/output.h"

namespace pkv::cli {

// In the order in which the rows are printed.
enum class BenchStage {
  kRead,  // a plain read of as many bytes as the vote reads; always measured on a CPU
  kEncode,
  kVote,
  kSelect,
  kRerank,
  kFetch,
  kAttend,
  kStep,
  kFullAttention,
};
inline constexpr const char* kBenchStageNames[] = {
    "read", "encode", "vote", "select", "rerank", "fetch", "attend", "step", "full_attention"};
inline const char* bench_stage_name(BenchStage stage) {
  return kBenchStageNames[static_cast<size_t>(stage)];
}

// Enqueued before a wait on a device with memory of its own, where a wait takes about as long as a
// step.
inline constexpr int64_t kBenchDeviceCalls = 16;

struct BenchOptions {
  Common common;
  OutputOptions output;
  ConfigOptions config;            // --profile, --k, --candidates, --tail
  std::vector<BenchStage> stages;  // ascending, all different
  std::vector<int64_t> n = {131072};
  int64_t batch = 1;
  int64_t kv_heads = 8;
  int64_t query_heads = 32;
  std::string head_dim = "128";  // as the library takes it
  std::string dtype_name = "bf16";
  pkv_dtype dtype = PKV_DTYPE_BF16;
  std::vector<int64_t> threads;  // empty: as many as the process may use
  std::string isa;               // "": the backend's choice
  int64_t repeat = 20;
  double seconds = 10;  // per row
  bool is_warm = false;
  std::string rows = "host";  // where K and V of the zone lie; or "device"
  int64_t memory = 2;         // GiB of layers
  int64_t row_cache = 0;      // rows that steps keep on the device, per KV head; 0: none
  double drift = 0.4;         // with it: how much of a layer's next query is new
  int64_t calls = 0;          // enqueued before a wait; 0: by the device
  std::string command;        // as it was typed

  bool has(BenchStage stage) const;
  // The profile's options with those given.
  OptionValues values() const;
};

// False if only --help was asked for.
absl::StatusOr<bool> parse_bench(const std::vector<std::string>& arguments, BenchOptions& options);

}  // namespace pkv::cli
