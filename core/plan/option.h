// The table of options and the rule that each value must satisfy by itself. What options mean
// together: config.h. docs/algorithm.md, section 1.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace pkv {

// Index into the table. The codec's options first, then the plan's, then append's.
enum class Option : int {
  kHeadDim,
  kValueDim,
  kVSource,
  kCodec,
  kVote,
  kCenter,
  kBalance,
  kFit,
  kRounds,
  kSeed,
  kValueNorm,
  kTail,
  kK,
  kCandidates,
  kVoteGroup,
  kRhoOf,
  kRank,
  kTailSamples,
  kScale,
  kSoftCap,
  kShare,
  kKMin,
  kNonfinite,
};
inline constexpr std::size_t kOptionCount = 23;

struct OptionInfo {
  const char* name;
  const char* accepts;
  const char* default_value;  // in profile "default"; "" if it must be set
  const char* paper_value;    // in profile "paper"
  const char* about;          // one line
};
std::span<const OptionInfo, kOptionCount> option_table();
inline const OptionInfo& option_info(Option option) {
  return option_table()[static_cast<std::size_t>(option)];
}

std::optional<Option> find_option(std::string_view name);
// The name in the table that takes the fewest edits to reach; "" if none is near.
std::string_view nearest_option(std::string_view name);

// The value in its one canonical form ("0100" becomes "100"), or nothing if it is not accepted.
// Numbers are read the same way in every locale, and to the last character.
std::optional<std::string> canonical_value(Option option, std::string_view text);

// Place of a choice in the table, from 1: the PKV_CODEC_*, PKV_VOTE_* and so on of the C API.
int32_t choice_number(Option option, std::string_view canonical);
// Other values in canonical form as numbers.
int64_t to_integer(std::string_view canonical);
uint64_t to_seed(std::string_view canonical);
double to_double(std::string_view canonical);
float to_float(std::string_view canonical);

}  // namespace pkv
