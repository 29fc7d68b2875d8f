#include "tests/conformance/golden_world.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

#include "fmt/core.h"
#include "tests/conformance/golden.h"
#include "tests/conformance/model.h"
#include "tests/conformance/rerank_bounds.h"

namespace pkv::conformance {
namespace {

// Streams, sizes and the seed of make_golden.py.
enum Stream {
  kKeys = 1,
  kQueries,
  kValues,
  kCenter,
  kBalance,
  kValueCenter,
  kPartKeys,
  kPartValues
};
constexpr int64_t kTokens = 16;
constexpr int64_t kPart = 5;
constexpr uint64_t kSeed = 0x9E3779B97F4A7C15ULL;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::vector<uint8_t> from_hex(const std::string& text) {
  std::vector<uint8_t> bytes;
  for (size_t i = 0; i + 1 < text.size(); i += 2) {
    bytes.push_back(static_cast<uint8_t>(std::stoi(text.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

template <class T>
std::vector<T> array_from_hex(const nlohmann::json& json) {
  const std::vector<uint8_t> bytes = from_hex(json.get<std::string>());
  std::vector<T> values(bytes.size() / sizeof(T));
  if (!values.empty()) std::memcpy(values.data(), bytes.data(), values.size() * sizeof(T));
  return values;
}

// null stands for -inf.
std::vector<float> decimals(const nlohmann::json& json) {
  std::vector<float> values;
  for (const auto& value : json) {
    values.push_back(static_cast<float>(value.is_null() ? -kInfinity : value.get<double>()));
  }
  return values;
}

pkv_dtype dtype_of(const std::string& name) {
  if (name == "f32") return PKV_DTYPE_F32;
  if (name == "f16") return PKV_DTYPE_F16;
  if (name == "bf16") return PKV_DTYPE_BF16;
  throw std::runtime_error("golden vectors: no dtype " + name);
}

// Rows of `width` numbers.
Rows<float> in_rows(const std::vector<float>& numbers, size_t rows) {
  Rows<float> result;
  const size_t width = numbers.size() / rows;
  for (size_t r = 0; r < rows; ++r) {
    const auto first = numbers.begin() + static_cast<int64_t>(r * width);
    result.emplace_back(first, first + static_cast<int64_t>(width));
  }
  return result;
}

}  // namespace

GoldenWorld::GoldenWorld(const nlohmann::json& entry)
    : entry_(entry), dtype_(dtype_of(entry["options"]["dtype"].get<std::string>())) {
  make_codec();
  const int64_t d = codec_.d();
  std::vector<float> keys = golden_numbers(kKeys, kTokens * d, dtype_);
  const auto key = [&](int64_t i) { return keys.begin() + i * d; };
  std::fill(key(3), key(4), 0.0F);
  *(key(5) + 1) = std::numeric_limits<float>::quiet_NaN();
  std::copy(key(2), key(3), key(7));
  if (dtype_ == PKV_DTYPE_F32) {
    for (auto x = key(9); x != key(10); ++x) *x *= 0x1p-80F;
  }
  keys_ = make_dense(dtype_, {1, 1, kTokens, d}, keys);
  values_ = make_dense(dtype_, {1, 1, kTokens, codec_.dv()},
                       golden_numbers(kValues, kTokens * codec_.dv(), dtype_));
  make_zone();
}

void GoldenWorld::make_codec() {
  const nlohmann::json& g = entry_["geometry"];
  pkv_geometry geometry =
      make_geometry(1, g["head_dim"].get<int32_t>(), g["value_dim"].get<int32_t>());
  geometry.codec = g["codec"].get<int32_t>();
  geometry.vote = g["vote"].get<int32_t>();
  geometry.rounds = g["rounds"].get<int32_t>();
  geometry.sketch_bits = g["sketch_bits"].get<int32_t>();
  geometry.sketch_stride = g["sketch_stride"].get<int32_t>();
  geometry.value_norm = g["value_norm"].get<int32_t>();
  geometry.seed = kSeed;
  codec_ = plain_codec(geometry);
  if (entry_["options"]["plain"].get<bool>()) return;
  codec_.center = golden_numbers(kCenter, codec_.d(), PKV_DTYPE_F32);
  codec_.balance = golden_numbers(kBalance, codec_.d(), PKV_DTYPE_F32);
  for (float& mu : codec_.center) mu *= 0.125F;
  for (float& s : codec_.balance) s = 0.5F + std::fabs(s) * 0.25F;
  set_reciprocals(codec_);
  if (codec_.value_center.empty()) return;
  codec_.value_center = golden_numbers(kValueCenter, codec_.dv(), PKV_DTYPE_F32);
  for (float& mu : codec_.value_center) mu *= 0.125F;
}

void GoldenWorld::make_zone() {
  zone_ = empty_zone(codec_, 1, kTokens, true);
  Records& row = zone_.rows[0];
  row = blank_records(codec_.geometry, 0, kTokens, 0);
  for (int p = 0; p < kPlanes; ++p) {
    if (!entry_["records"].contains(kPlaneNames[p])) continue;
    row.planes[p] = from_hex(entry_["records"][kPlaneNames[p]].get<std::string>());
  }
  zone_.value_sums = array_from_hex<double>(entry_["value_sums"]);
  zone_.good_counts = {entry_["good_count"].get<int64_t>()};
  if (zone_.occupancy.empty()) return;
  const int32_t S = codec_.d() / 8;
  for (int64_t t = 0; t < kTokens; ++t) {
    for (int32_t b = 0; b < S && !is_bad(codec_.geometry, row, t); ++b) {
      ++zone_.occupancy[static_cast<size_t>(256 * b + row.planes[0][t * S + b])];
    }
  }
}

Tensor GoldenWorld::numbers(int32_t stream, const Shape& shape) const {
  return lay_out(make_dense(dtype_, shape, golden_numbers(stream, count_of(shape), dtype_)),
                 Layout::kStrided);
}

std::vector<int32_t> GoldenWorld::integers(const char* name) const {
  return entry_[name].get<std::vector<int32_t>>();
}

EncodeInput GoldenWorld::encode_input() const {
  EncodeInput input;
  input.before = empty_zone(codec_, 1, kTokens, true);
  input.keys = lay_out(keys_, Layout::kStrided);
  input.values = lay_out(values_, Layout::kStrided);
  input.sequences = {0};
  input.starts = {0};
  input.counts = {kTokens};
  return input;
}

VoteInput GoldenWorld::vote_input() const {
  VoteInput input;
  input.queries = numbers(kQueries, {1, option("group"), codec_.d()});
  input.batch = {{0}, {kTokens}, kTokens};
  input.query_heads = option("group");
  input.vote_group = option("vote_group");
  input.rho_of = option("rho_of");
  input.votes_stride = kTokens;
  return input;
}

Votes GoldenWorld::votes() const { return {{array_from_hex<float>(entry_["votes"])}}; }

SelectInput GoldenWorld::select_input() const {
  return conformance::select_input(votes().votes, {kTokens}, 1,
                                   share_rule(option("ppm"), option("k")));
}

Candidates GoldenWorld::candidates() const {
  Candidates result = {{integers("candidates")}, {}};
  result.counts.push_back(static_cast<int32_t>(result.candidates[0].size()));
  result.candidates[0].resize(static_cast<size_t>(select_input().candidates_stride), -1);
  return result;
}

RerankInput GoldenWorld::rerank_input() const {
  RerankInput input;
  input.queries = vote_input().queries;
  input.batch = vote_input().batch;
  input.query_heads = option("group");
  input.candidates = {integers("candidates")};
  input.candidates_stride = static_cast<int64_t>(input.candidates[0].size()) + 2;
  input.rank = option("rank");
  input.k = option("k");
  input.tail_samples = option("tail_samples");
  input.weigh_norms = codec_.geometry.value_norm;
  input.scale = entry_["options"]["scale"].get<float>();
  return input;
}

ExpectedHits GoldenWorld::hits() const {
  const RerankInput input = rerank_input();
  const std::vector<int32_t> candidates = integers("candidates");
  const std::vector<float> scores = decimals(entry_["scores"]);
  ExpectedHits expected;
  Hits& hits = expected.hits;
  hits.positions = {integers("hits")};
  hits.counts = {static_cast<int32_t>(hits.positions[0].size())};
  for (const int32_t position : hits.positions[0]) {
    const auto at = std::find(candidates.begin(), candidates.end(), position);
    if (hits.scores.empty()) hits.scores.emplace_back();
    hits.scores[0].push_back(scores[static_cast<size_t>(at - candidates.begin())]);
  }
  if (hits.scores.empty()) hits.scores.emplace_back();
  hits.positions[0].resize(static_cast<size_t>(input.k), -1);
  hits.scores[0].resize(static_cast<size_t>(input.k), static_cast<float>(-kInfinity));
  hits.estimates =
      in_rows(array_from_hex<float>(entry_["estimates"]), static_cast<size_t>(input.query_heads));
  hits.rest_lse = decimals(entry_["rest_lse"]);
  hits.sample_estimates = in_rows(array_from_hex<float>(entry_["sample_estimates"]),
                                  static_cast<size_t>(input.query_heads));
  for (std::vector<float>& samples : hits.sample_estimates) {
    samples.resize(static_cast<size_t>(input.tail_samples),
                   std::numeric_limits<float>::quiet_NaN());
  }
  expected.all.positions = {candidates};
  expected.all.scores = {scores};
  expected.all.estimates = hits.estimates;
  expected.rest_tolerance = {
      RowBounds(codec_, zone_, input, 0).rest(entry_["rest_size"].get<double>())};
  return expected;
}

Tensor GoldenWorld::rows(const Dense& source) const {
  const int64_t width = source.shape[3];
  const ExpectedHits expected = hits();
  std::vector<float> x;
  for (const int32_t position : expected.hits.positions[0]) {
    for (int64_t j = 0; j < width; ++j) {
      x.push_back(position < 0 ? std::numeric_limits<float>::quiet_NaN()
                               : source.at(position * width + j));
    }
  }
  return lay_out(make_dense(dtype_, {1, 1, option("k"), width}, x), Layout::kStrided);
}

AttendInput GoldenWorld::attend_input() const {
  const ExpectedHits expected = hits();
  AttendInput input;
  input.queries = vote_input().queries;
  input.batch = vote_input().batch;
  input.query_heads = option("group");
  input.tail = option("tail");
  input.scale = rerank_input().scale;
  input.parts.push_back({numbers(kPartKeys, {1, 1, kPart, codec_.d()}),
                         numbers(kPartValues, {1, 1, kPart, codec_.dv()}),
                         {}});
  input.k = option("k");
  if (input.k > 0) input.rows = PartInput{rows(keys_), rows(values_), {}};
  input.positions = expected.hits.positions;
  input.counts = expected.hits.counts;
  input.candidates = {integers("candidates")};
  input.candidates_stride = rerank_input().candidates_stride;
  input.estimates = expected.hits.estimates;
  input.rest_lse = expected.hits.rest_lse;
  input.tail_samples = option("tail_samples");
  input.sample_estimates = expected.hits.sample_estimates;
  return input;
}

Attention GoldenWorld::attention() const {
  return {make_dense(PKV_DTYPE_F32, {1, option("group"), codec_.dv()}, decimals(entry_["output"])),
          decimals(entry_["lse"])};
}

}  // namespace pkv::conformance
