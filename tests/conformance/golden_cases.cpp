// The stages, the sign vectors and the candidate counts against golden vectors.
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>

#include "fmt/core.h"
#include "tests/conformance/attend_judge.h"
#include "tests/conformance/failure.h"
#include "tests/conformance/golden.h"
#include "tests/conformance/golden_world.h"

namespace pkv::conformance {
namespace {

using Json = nlohmann::json;

void check_encode(const Bench& bench, const GoldenWorld& world) {
  const EncodeInput input = world.encode_input();
  const Encoded got = bench.result([&](const Place& place, uint8_t fill) {
    return run_encode(place, fill, world.codec(), input);
  });
  expect_bits("records", world.zone(), got.zone);
  expect_bits("first_bad", std::vector<int64_t>{5}, got.first_bad);
}

void check_vote(const Bench& bench, const GoldenWorld& world) {
  const VoteInput input = world.vote_input();
  const Votes got = bench.result([&](const Place& place, uint8_t fill) {
    return run_vote(place, fill, world.codec(), world.zone(), input);
  });
  expect_bits("votes", world.votes().votes, got.votes);
}

void check_select(const Bench& bench, const GoldenWorld& world) {
  const SelectInput input = world.select_input();
  const Candidates got = bench.result(
      [&](const Place& place, uint8_t fill) { return run_select(place, fill, input); });
  expect_same(world.candidates(), got, "select");
}

void check_rerank(const Bench& bench, const GoldenWorld& world) {
  const RerankInput input = world.rerank_input();
  const Hits got = bench.result([&](const Place& place, uint8_t fill) {
    return run_rerank(place, fill, world.codec(), world.zone(), input);
  });
  judge_hits(world.codec(), world.zone(), input, world.hits(), got);
}

void check_attend(const Bench& bench, const GoldenWorld& world) {
  const AttendInput input = world.attend_input();
  const Attention got = bench.result([&](const Place& place, uint8_t fill) {
    return run_attend(place, fill, world.codec(), world.zone(), input);
  });
  judge_attention(world.codec(), world.zone(), input, world.attention(), got);
}

void add_stages(Cases& cases, const Json& entry) {
  const struct {
    const char* stage;
    Verdict verdict;
    void (*check)(const Bench&, const GoldenWorld&);
  } stages[] = {{"encode", Verdict::kExact, check_encode},
                {"vote", Verdict::kExact, check_vote},
                {"select", Verdict::kExact, check_select},
                {"rerank", Verdict::kTolerance, check_rerank},
                {"attend", Verdict::kTolerance, check_attend}};
  for (const auto& stage : stages) {
    cases.push_back(
        {fmt::format("golden/{}/{}", stage.stage, entry["name"].get<std::string>()), stage.verdict,
         [entry, check = stage.check](const Bench& bench) { check(bench, GoldenWorld(entry)); }});
  }
}

// Sign vectors and counts come from the library itself.
void skip_for_others(const Bench& bench) {
  if (bench.subject().backend() == bench.reference().backend()) return;
  throw Skip(fmt::format("asks the library, not the backend: run with --backend {}",
                         bench.reference().backend()));
}

void check_signs(const Bench& bench, const Json& entry) {
  skip_for_others(bench);
  const auto count = entry["count"].get<int32_t>();
  const auto minus = entry["minus"].get<std::string>();
  std::vector<float> got(static_cast<size_t>(count));
  require("pkv_sign_vector", pkv_sign_vector(std::stoull(entry["seed"].get<std::string>()),
                                             entry["stream"].get<int32_t>(), count, got.data()));
  std::vector<float> expected;
  for (int32_t j = 0; j < count; ++j) {
    const auto byte = std::stoul(minus.substr(static_cast<size_t>(j / 8 * 2), 2), nullptr, 16);
    expected.push_back((byte >> (j % 8) & 1U) != 0 ? -1.0F : 1.0F);
  }
  expect_bits("signs", expected, got);
}

void check_counts(const Bench& bench, const Json& entry) {
  skip_for_others(bench);
  pkv_candidate_rule rule = {};
  rule.steps = static_cast<int32_t>(entry["ppm"].size());
  rule.k = entry["k"].get<int32_t>();
  for (int32_t step = 0; step < rule.steps; ++step) {
    rule.below[step] = std::stoll(entry["below"][static_cast<size_t>(step)].get<std::string>());
    rule.ppm[step] = entry["ppm"][static_cast<size_t>(step)].get<int64_t>();
  }
  std::vector<int64_t> got;
  for (const auto& n : entry["lengths"]) {
    got.push_back(0);
    require("pkv_candidate_count", pkv_candidate_count(&rule, n.get<int64_t>(), &got.back()));
  }
  expect_bits("counts", entry["counts"].get<std::vector<int64_t>>(), got);
}

void add_library(Cases& cases, const Json& file) {
  for (const Json& entry : file["sign_vectors"]) {
    cases.push_back({fmt::format("golden/signs/seed{}_stream{}", entry["seed"].get<std::string>(),
                                 entry["stream"].get<int32_t>()),
                     Verdict::kExact, [entry](const Bench& bench) { check_signs(bench, entry); }});
  }
  int number = 0;
  for (const Json& entry : file["candidate_counts"]) {
    cases.push_back(
        {fmt::format("golden/counts/rule{}_k{}", number++ / 3, entry["k"].get<int32_t>()),
         Verdict::kExact, [entry](const Bench& bench) { check_counts(bench, entry); }});
  }
}

}  // namespace

std::vector<float> golden_numbers(int32_t stream, int64_t count, pkv_dtype dtype) {
  std::vector<float> numbers;
  for (int64_t i = 0; i < count; ++i) {
    auto h = static_cast<uint32_t>(i) * 0x9E3779B9U + static_cast<uint32_t>(stream) * 0x85EBCA6BU;
    h = (h ^ (h >> 16)) * 0x7FEB352DU;
    h = (h ^ (h >> 15)) * 0x846CA68BU;
    h ^= h >> 16;
    numbers.push_back(dtype == PKV_DTYPE_F32
                          ? static_cast<float>(static_cast<int32_t>(h >> 8) - (1 << 23)) * 0x1p-21F
                          : static_cast<float>(static_cast<int32_t>(h >> 24) - 128) * 0x1p-5F);
  }
  return numbers;
}

std::vector<GoldenFile> read_golden(const std::string& folder) {
  std::vector<GoldenFile> files;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    if (entry.path().extension() != ".json") continue;
    std::ifstream file(entry.path(), std::ios::binary);
    files.push_back({entry.path().string(),
                     {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()}});
  }
  if (error) throw std::runtime_error(fmt::format("--golden {}: {}", folder, error.message()));
  if (files.empty()) throw std::runtime_error(fmt::format("--golden {}: no .json files", folder));
  return files;
}

void add_golden_cases(Cases& cases, const std::vector<GoldenFile>& files) {
  for (const GoldenFile& file : files) {
    try {
      const Json json = Json::parse(file.text);
      if (json.contains("stages")) {
        for (const Json& entry : json["stages"]) add_stages(cases, entry);
      }
      if (json.contains("sign_vectors")) add_library(cases, json);
    } catch (const Json::exception& error) {
      throw std::runtime_error(fmt::format("{}: {}", file.name, error.what()));
    }
  }
}

}  // namespace pkv::conformance
