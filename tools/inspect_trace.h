// Why a trace does well or badly: figures per KV head.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/config_options.h"
#include "tools/engine.h"

namespace pkv::cli {

struct InspectSetting {
  std::string profile = "default";
  OptionValues options;
  int64_t sink = 128;
  int64_t local = 512;
  int64_t fit_queries = 64;
};

// Of one KV head, over the judged queries.
struct HeadFigures {
  int64_t kv_head = 0;                     // the model's number
  int64_t n = 0;                           // tokens of the zone at the last query
  std::optional<double> candidate_recall;  // of the vote
  std::optional<double> recall;            // of the final set
  std::optional<double> tied;              // share of the candidates that the tie rule chose
  double cosine = 0;                       // mean over pairs of keys
  double norm_min = 0, norm_mean = 0, norm_max = 0;
  double balance_min = 0, balance_max = 0;
  double patterns_used = 0;    // mean share of the 256 sign patterns that occur, over subspaces
  double largest_pattern = 0;  // largest share of keys with one pattern, over subspaces
};

absl::StatusOr<std::vector<HeadFigures>> inspect_trace(const Engine& engine,
                                                       const std::string& path,
                                                       const InspectSetting& setting);

// Share of the candidates that have the same vote as a key which is no candidate: where the cut
// went through a tie. `votes` [n], `candidates` ascending positions.
double tied_share(std::span<const float> votes, std::span<const int32_t> candidates);

// The last two figures from counts of patterns [subspaces, 256] of `keys` keys.
struct PatternFigures {
  double used = 0;
  double largest = 0;
};
PatternFigures pattern_figures(std::span<const int32_t> counts, int64_t keys);

}  // namespace pkv::cli
