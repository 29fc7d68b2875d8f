#include "core/plan/option.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <numeric>
#include <system_error>
#include <vector>

#include "core/base/check.h"
#include "core/format/records.h"

namespace pkv {
namespace {

constexpr OptionInfo kTable[] = {
    {"head_dim", "a multiple of 8 in 8..576", "", "", "width d of keys and queries; must be set"},
    {"value_dim", "auto, 0, or a multiple of 8 in 8..576", "auto", "auto",
     "width dv of values; auto: head_dim, 0 with v_source = none"},
    {"v_source", "own, k_prefix, none", "own", "own",
     "where values come from: given, the first value_dim coordinates of keys, or there are none"},
    {"codec", "polar4, scalar4, scalar5", "scalar4", "polar4", "how magnitudes are coded"},
    {"vote", "tier, graded", "graded", "tier", "how candidates are found"},
    {"center", "off, on", "on", "off", "subtract the mean key before encoding"},
    {"balance", "off, on", "on", "off", "scale coordinates by the spread of queries and keys"},
    {"fit", "keys, picked", "picked", "keys",
     "what centre and balance are fitted to: all keys, or those that the queries pick"},
    {"rounds", "1, 2", "1", "1", "rounds of the rotation; 2 only for a power of two head_dim"},
    {"seed", "0..18446744073709551615", "0", "0", "of the sign vectors"},
    {"value_norm", "off, on", "off", "off", "records carry the norm of V, and scores weigh it"},
    {"tail", "drop, mean, sampled, sketch2, sketch4", "sampled", "drop",
     "what stands for keys that are not fetched"},
    {"k", "0..65536", "100", "100", "rows to fetch per row of the index"},
    {"candidates", "auto or a share in (0, 1]", "auto", "auto",
     "how many keys the vote keeps; auto: the profile's share by length"},
    {"vote_group", "sum, heads", "sum", "sum",
     "vote with the sum of a group's queries, or per head (graded only)"},
    {"rho_of", "keys, centroids", "keys", "keys", "what tiers count (tier only)"},
    {"rank", "mean, group", "group", "mean", "how the heads of a group share one order"},
    {"tail_samples", "1..65536", "512", "512",
     "keys that stand for those that are no candidates (tail other than drop)"},
    {"scale", "auto or (0, 1e6]", "auto", "auto", "of the softmax; auto: 1/sqrt(head_dim)"},
    {"soft_cap", "0 (none) or (0, 1e6]", "0", "0",
     "logits become soft_cap * tanh(logit / soft_cap)"},
    {"share", "0..1", "0", "0",
     "fetch until this share of the weight is reached (rank = group); 0: k"},
    {"k_min", "0..65536", "1", "1", "rows to fetch at least, with share"},
    {"nonfinite", "refuse, isolate", "refuse", "refuse", "what append_sync does with bad keys"},
};
static_assert(std::size(kTable) == kOptionCount);

// The whole text as a number, or nothing.
template <class T>
std::optional<T> parse(std::string_view text) {
  T value{};
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stop != end) return std::nullopt;
  return value;
}

template <class T>
T parsed(std::string_view canonical) {
  const std::optional<T> value = parse<T>(canonical);
  PKV_DCHECK(value.has_value());
  return value.value_or(T{});
}

template <class T>
std::string format_number(T value) {
  std::array<char, 64> text;
  const auto [end, error] = std::to_chars(text.data(), text.data() + text.size(), value);
  PKV_DCHECK(error == std::errc());
  return {text.data(), end};
}

std::optional<std::string> integer_in(std::string_view text, int64_t min, int64_t max) {
  const std::optional<int64_t> value = parse<int64_t>(text);
  if (!value || *value < min || *value > max) return std::nullopt;
  return format_number(*value);
}

std::optional<std::string> dim(std::string_view text) {
  const std::optional<int64_t> value = parse<int64_t>(text);
  if (!value || *value % format::kSubspace != 0) return std::nullopt;
  return integer_in(text, format::kMinHeadDim, format::kMaxHeadDim);
}

// min < value <= max; NaN is outside.
template <class T>
std::optional<std::string> real_above(std::string_view text, T min, T max) {
  const std::optional<T> value = parse<T>(text);
  if (!value || !(*value > min && *value <= max)) return std::nullopt;
  return format_number(*value);
}

// Place of `text` in "first, second, third", from 1; 0: it is not there.
int32_t place_in(std::string_view accepts, std::string_view text) {
  for (int32_t place = 1;; ++place) {
    const std::size_t length = std::min(accepts.find(", "), accepts.size());
    if (text == accepts.substr(0, length)) return place;
    if (length == accepts.size()) return 0;
    accepts.remove_prefix(length + 2);
  }
}

// Insertions, deletions, replacements of one character.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);  // distances from a's first i to b's first j
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = row[0]++;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, diagonal + 1});
    }
  }
  return row.back();
}

}  // namespace

std::span<const OptionInfo, kOptionCount> option_table() { return kTable; }

std::optional<Option> find_option(std::string_view name) {
  const auto* const it = std::find_if(std::begin(kTable), std::end(kTable),
                                      [&](const OptionInfo& info) { return name == info.name; });
  if (it == std::end(kTable)) return std::nullopt;
  return static_cast<Option>(it - std::begin(kTable));
}

std::string_view nearest_option(std::string_view name) {
  constexpr std::size_t kLongest = 64;  // no misspelling; keeps the work small
  if (name.size() > kLongest) return "";
  std::string_view nearest;
  std::size_t fewest = std::max<std::size_t>(2, name.size() / 3) + 1;
  for (const OptionInfo& info : kTable) {
    const std::size_t edits = edit_distance(name, info.name);
    if (edits < fewest && edits < name.size()) {
      fewest = edits;
      nearest = info.name;
    }
  }
  return nearest;
}

std::optional<std::string> canonical_value(Option option, std::string_view text) {
  switch (option) {
    case Option::kHeadDim: return dim(text);
    case Option::kValueDim: return text == "auto" || text == "0" ? std::string(text) : dim(text);
    case Option::kSeed: {
      const std::optional<uint64_t> value = parse<uint64_t>(text);
      return value ? std::optional(format_number(*value)) : std::nullopt;
    }
    case Option::kCandidates:
      return text == "auto" ? std::string(text) : real_above<double>(text, 0, 1);
    case Option::kScale:
      return text == "auto" ? std::string(text) : real_above<float>(text, 0, 1e6F);
    case Option::kSoftCap: {
      const std::optional<float> value = parse<float>(text);
      return value && *value == 0 ? "0" : real_above<float>(text, 0, 1e6F);
    }
    case Option::kShare: {
      const std::optional<double> value = parse<double>(text);
      return value && *value == 0 ? "0" : real_above<double>(text, 0, 1);
    }
    case Option::kRounds: return integer_in(text, 1, 2);
    case Option::kK:
    case Option::kKMin: return integer_in(text, 0, format::kMaxK);
    case Option::kTailSamples: return integer_in(text, 1, 65536);
    default:
      if (place_in(option_info(option).accepts, text) == 0) return std::nullopt;
      return std::string(text);
  }
}

int32_t choice_number(Option option, std::string_view canonical) {
  return place_in(option_info(option).accepts, canonical);
}
int64_t to_integer(std::string_view canonical) { return parsed<int64_t>(canonical); }
uint64_t to_seed(std::string_view canonical) { return parsed<uint64_t>(canonical); }
double to_double(std::string_view canonical) { return parsed<double>(canonical); }
float to_float(std::string_view canonical) { return parsed<float>(canonical); }

}  // namespace pkv
