#include "core/plan/config.h"

#include <doctest/doctest.h>

#include <clocale>
#include <string>
#include <vector>

#include "core/base/text.h"
#include "core/format/candidates.h"
#include "core/format/inv_sqrt.h"

namespace pkv {
namespace {

Config make(const std::string& profile = "default") {
  auto config = Config::create(profile);
  REQUIRE(config.ok());
  return *config;
}

struct Choice {
  const char* name;
  const char* value;
};
Config with(const std::vector<Choice>& choices, const std::string& profile = "default") {
  Config config = make(profile);
  for (const auto& [name, value] : choices) REQUIRE(config.set(name, value).ok());
  return config;
}
// The same with head_dim, without which nothing is complete.
Config complete(std::vector<Choice> choices, const std::string& profile = "default") {
  choices.insert(choices.begin(), {"head_dim", "128"});
  return with(choices, profile);
}

std::string get(const Config& config, const char* name) { return **config.get(name); }

void check_refused(const absl::Status& status, absl::StatusCode code,
                   const std::vector<std::string>& parts) {
  CHECK(status.code() == code);
  const std::string text(to_std(status.message()));
  CAPTURE(text);
  for (const std::string& part : parts) {
    CAPTURE(part);
    CHECK(text.find(part) != std::string::npos);
  }
}
void check_refused(const absl::Status& status, const std::vector<std::string>& parts) {
  check_refused(status, absl::StatusCode::kInvalidArgument, parts);
}

TEST_CASE("config: profiles are default and paper") {
  CHECK(Config::create("default").ok());
  CHECK(Config::create("paper").ok());
  check_refused(Config::create("Paper").status(), {"\"Paper\"", "default, paper"});
  check_refused(Config::create("").status(), {"\"\""});
}

// docs/algorithm.md, section 1, and the defaults that sections 2 to 8 name.
TEST_CASE("config: defaults of every option in both profiles") {
  const char* const kDefaults[][3] = {{"head_dim", "", ""},
                                      {"value_dim", "auto", "auto"},
                                      {"v_source", "own", "own"},
                                      {"codec", "scalar4", "polar4"},
                                      {"vote", "graded", "tier"},
                                      {"center", "on", "off"},
                                      {"balance", "on", "off"},
                                      {"fit", "picked", "keys"},
                                      {"rounds", "1", "1"},
                                      {"seed", "0", "0"},
                                      {"value_norm", "off", "off"},
                                      {"tail", "sampled", "drop"},
                                      {"k", "100", "100"},
                                      {"candidates", "auto", "auto"},
                                      {"vote_group", "sum", "sum"},
                                      {"rho_of", "keys", "keys"},
                                      {"rank", "group", "mean"},
                                      {"tail_samples", "512", "512"},
                                      {"scale", "auto", "auto"},
                                      {"soft_cap", "0", "0"},
                                      {"share", "0", "0"},
                                      {"k_min", "1", "1"},
                                      {"nonfinite", "refuse", "refuse"}};
  REQUIRE(std::size(kDefaults) == kOptionCount);
  for (std::size_t i = 0; i < kOptionCount; ++i) {
    CAPTURE(kDefaults[i][0]);
    CHECK(std::string(option_table()[i].name) == kDefaults[i][0]);
    CHECK(get(make(), kDefaults[i][0]) == kDefaults[i][1]);
    CHECK(get(make("paper"), kDefaults[i][0]) == kDefaults[i][2]);
  }
}

TEST_CASE("config: each default is a value that set takes, and both profiles are consistent") {
  for (const char* profile : {"default", "paper"}) {
    Config config = make(profile);
    for (const OptionInfo& info : option_table()) {
      CAPTURE(info.name);
      const std::string value = get(config, info.name);
      CHECK(config.set(info.name, value.empty() ? "64" : value).ok());
    }
    CHECK(config.geometry(8).ok());
    CHECK(config.step_options().ok());
  }
}

struct Values {
  const char* name;
  std::vector<const char*> accepted;  // in canonical form
  std::vector<const char*> refused;
};
const std::vector<Values>& all_values() {
  static const std::vector<Values> kValues = {
      {"head_dim",
       {"8", "16", "128", "576"},
       {"0", "4", "12", "-8", "584", "128.0", "128 ", " 128", "+128", "0x80", "1e2", "4294967304",
        "18446744073709551744", "", "auto"}},
      {"value_dim", {"auto", "0", "8", "576"}, {"4", "-8", "577", "584", "Auto", "none", ""}},
      {"v_source", {"own", "k_prefix", "none"}, {"", "o", "own ", "OWN", "own, k_prefix", "1"}},
      {"codec", {"polar4", "scalar4", "scalar5"}, {"scalar", "scalar45", "polar", "4", ""}},
      {"vote", {"tier", "graded"}, {"tiers", "none", ""}},
      {"center", {"off", "on"}, {"1", "true", "ON", ""}},
      {"balance", {"off", "on"}, {"0", "false", "of", ""}},
      {"fit", {"keys", "picked"}, {"pick", "on", "Keys", ""}},
      {"rounds", {"1", "2"}, {"0", "3", "-1", "1.0", ""}},
      {"seed",
       {"0", "1", "9223372036854775808", "18446744073709551615"},
       {"-1", "18446744073709551616", "1.5", "0x1", "x", ""}},
      {"value_norm", {"off", "on"}, {"yes", ""}},
      {"tail",
       {"drop", "mean", "sampled", "sketch2", "sketch4"},
       {"sketch", "sketch3", "sample", "none", ""}},
      {"k", {"0", "1", "100", "65536"}, {"-1", "65537", "4294967296", "1e2", "100.0", ""}},
      {"candidates",
       {"auto", "0.05", "1", "0.5", "1e-12"},
       {"0", "0.0", "-0.1", "1.0000001", "5%", "0,05", "nan", "inf", "0.05x", ""}},
      {"vote_group", {"sum", "heads"}, {"max", ""}},
      {"rho_of", {"keys", "centroids"}, {"key", ""}},
      {"rank", {"mean", "group"}, {"max", ""}},
      {"tail_samples", {"1", "512", "65536"}, {"0", "65537", "-1", ""}},
      {"scale",
       {"auto", "0.125", "1", "1e+06", "1e-30"},
       {"0", "-1", "1000001", "nan", "inf", "1e-60", "0,1", ""}},
      {"soft_cap",
       {"0", "30", "0.5", "1e+06"},
       {"-1", "1000001", "nan", "inf", "-inf", "1e-60", "none", ""}},
      {"share", {"0", "0.9", "1"}, {"-0.1", "1.1", "nan", "on", ""}},
      {"k_min", {"0", "1", "65536"}, {"-1", "65537", ""}},
      {"nonfinite", {"refuse", "isolate"}, {"ignore", ""}},
  };
  return kValues;
}

TEST_CASE("config: every option takes what it accepts and keeps it") {
  REQUIRE(all_values().size() == kOptionCount);
  for (std::size_t i = 0; i < kOptionCount; ++i) {
    const Values& values = all_values()[i];
    REQUIRE(std::string(values.name) == option_table()[i].name);
    for (const char* value : values.accepted) {
      CAPTURE(values.name);
      CAPTURE(value);
      Config config = make();
      CHECK(config.set(values.name, value).ok());
      CHECK(get(config, values.name) == value);
    }
  }
}

TEST_CASE("config: every option refuses the rest, names itself, value and range, keeps its value") {
  for (const Values& values : all_values()) {
    for (const char* value : values.refused) {
      CAPTURE(values.name);
      CAPTURE(value);
      Config config = make();
      const std::string before = get(config, values.name);
      const std::string accepts = option_info(*find_option(values.name)).accepts;
      check_refused(config.set(values.name, value),
                    {std::string(values.name) + "=\"" + value + "\"", "accepted: " + accepts});
      CHECK(get(config, values.name) == before);
    }
  }
}

TEST_CASE("config: numbers are kept in one form") {
  const char* const kForms[][3] = {{"k", "0100", "100"},       {"k", "-0", "0"},
                                   {"seed", "00", "0"},        {"candidates", "1e-2", "0.01"},
                                   {"candidates", "1.0", "1"}, {"share", "0.0", "0"},
                                   {"share", "-0", "0"},       {"scale", "0.1250", "0.125"},
                                   {"head_dim", "064", "64"}};
  for (const auto& [name, value, form] : kForms) {
    Config config = make();
    CHECK(config.set(name, value).ok());
    CHECK(get(config, name) == form);
  }
}

TEST_CASE("config: values with NUL or control characters are shown, not obeyed") {
  using namespace std::string_view_literals;
  Config config = make();
  check_refused(config.set("k", "100\0"sv), {R"(k="100\000")"});
  check_refused(config.set("center", "on\n"), {R"(center="on\n")"});
}

TEST_CASE("config: numbers do not depend on the locale") {
  const std::string before = std::setlocale(LC_ALL, nullptr);
  const bool is_set = std::setlocale(LC_ALL, "de_DE.UTF-8") != nullptr ||
                      std::setlocale(LC_ALL, "fr_FR.UTF-8") != nullptr;
  if (!is_set) MESSAGE("no locale with a decimal comma is installed; checked in the C locale");
  Config config = complete({{"candidates", "0.25"}, {"scale", "0.5"}});
  check_refused(config.set("candidates", "0,25"), {"candidates"});
  const auto options = config.step_options();
  std::setlocale(LC_ALL, before.c_str());
  REQUIRE(options.ok());
  CHECK(options->rule.ppm[0] == 250000);
  CHECK(options->scale == 0.5F);
}

TEST_CASE("config: an unknown name is not found, the nearest is named and all are listed") {
  Config config = make();
  const auto code = absl::StatusCode::kNotFound;
  check_refused(config.set("hed_dim", "8"), code,
                {"\"hed_dim\", nearest: head_dim; there are: head"});
  check_refused(config.set("candidate", "8"), code, {"nearest: candidates;"});
  check_refused(config.set("vote-group", "sum"), code, {"nearest: vote_group;"});
  check_refused(config.set("kmin", "1"), code, {"nearest: k_min;"});
  check_refused(config.get("Codec").status(), code, {"nearest: codec;", "nonfinite"});
  for (const char* name : {"page_size", "x", "", "gpu_stream_count"}) {
    CAPTURE(name);
    const absl::Status status = config.set(name, "1");
    check_refused(status, code, {"no option", "; there are: head_dim, value_dim"});
    CHECK(to_std(status.message()).find("nearest") == std::string_view::npos);
  }
  check_refused(config.set(std::string(100000, 'k'), "1"), code, {"no option", "..."});
}

TEST_CASE("config: geometry of the default profile") {
  const auto geometry = complete({}).geometry(8);
  REQUIRE(geometry.ok());
  CHECK(geometry->struct_size == sizeof(pkv_geometry));
  CHECK(geometry->kv_heads == 8);
  CHECK(geometry->head_dim == 128);
  CHECK(geometry->value_dim == 128);
  CHECK(geometry->v_source == PKV_V_SOURCE_OWN);
  CHECK(geometry->codec == PKV_CODEC_SCALAR4);
  CHECK(geometry->vote == PKV_VOTE_GRADED);
  CHECK(geometry->rounds == 1);
  CHECK(geometry->sketch_bits == 4);
  CHECK(geometry->sketch_stride == 16);
  CHECK(geometry->value_norm == 0);
  CHECK(geometry->seed == 0);
}

TEST_CASE("config: every word becomes its number") {
  const auto geometry = [](const Choice& choice) { return *complete({choice}).geometry(1); };
  CHECK(geometry({"v_source", "k_prefix"}).v_source == PKV_V_SOURCE_K_PREFIX);
  CHECK(geometry({"codec", "polar4"}).codec == PKV_CODEC_POLAR4);
  CHECK(geometry({"codec", "scalar5"}).codec == PKV_CODEC_SCALAR5);
  CHECK(geometry({"vote", "tier"}).vote == PKV_VOTE_TIER);
  CHECK(geometry({"rounds", "2"}).rounds == 2);
  CHECK(geometry({"seed", "18446744073709551615"}).seed == UINT64_MAX);
  CHECK(geometry({"value_norm", "on"}).value_norm == 1);
  const auto has_sketch = [&](const char* tail, int32_t bits, int32_t stride) {
    const pkv_geometry g = geometry({"tail", tail});
    return g.sketch_bits == bits && g.sketch_stride == stride;
  };
  CHECK(has_sketch("drop", 0, 0));
  CHECK(has_sketch("mean", 0, 0));
  CHECK(has_sketch("sampled", 4, 16));
  CHECK(has_sketch("sketch2", 2, 1));
  CHECK(has_sketch("sketch4", 4, 1));
  CHECK(geometry({"value_dim", "64"}).value_dim == 64);

  const auto step = [](const Choice& choice) { return *complete({choice}).step_options(); };
  CHECK(step({"k", "7"}).k == 7);
  CHECK(step({"vote_group", "sum"}).vote_group == PKV_VOTE_GROUP_SUM);
  CHECK(step({"vote_group", "heads"}).vote_group == PKV_VOTE_GROUP_HEADS);
  CHECK(step({"rho_of", "keys"}).rho_of == PKV_RHO_OF_KEYS);
  CHECK(complete({{"rho_of", "centroids"}}, "paper").step_options()->rho_of ==
        PKV_RHO_OF_CENTROIDS);
  CHECK(step({"rank", "mean"}).rank == PKV_RANK_MEAN);
  CHECK(step({"rank", "group"}).rank == PKV_RANK_GROUP);
  CHECK(step({"tail", "drop"}).tail == PKV_TAIL_DROP);
  CHECK(step({"tail", "mean"}).tail == PKV_TAIL_MEAN);
  CHECK(step({"tail", "sampled"}).tail == PKV_TAIL_SAMPLED);
  CHECK(step({"tail", "sketch2"}).tail == PKV_TAIL_SKETCH);
  CHECK(step({"tail", "sketch4"}).tail == PKV_TAIL_SKETCH);
  CHECK(step({"tail_samples", "64"}).tail_samples == 64);
  CHECK(step({"value_norm", "on"}).weigh_norms);
  CHECK_FALSE(step({"value_norm", "off"}).weigh_norms);
  CHECK(step({"share", "0.9"}).share == 0.9);
  CHECK(complete({{"share", "0.9"}, {"k_min", "9"}}).step_options()->k_min == 9);

  CHECK(complete({}).codec_options().center);
  CHECK(complete({}).codec_options().balance);
  CHECK_FALSE(complete({{"center", "off"}}).codec_options().center);
  CHECK_FALSE(complete({{"balance", "off"}}).codec_options().balance);
  CHECK(complete({}).codec_options().fit_picked);
  CHECK_FALSE(complete({}, "paper").codec_options().fit_picked);
  CHECK_FALSE(complete({{"fit", "keys"}}).codec_options().fit_picked);
  CHECK_FALSE(complete({}).codec_options().isolate);
  CHECK(complete({{"nonfinite", "isolate"}}).codec_options().isolate);
}

TEST_CASE("config: scale is fp32(1/sqrt(d)) by default, else the float nearest to the text") {
  CHECK(complete({}).step_options()->scale == format::inv_sqrt(128));
  CHECK(with({{"head_dim", "64"}}).step_options()->scale == 0.125F);
  CHECK(complete({{"scale", "0.1"}}).step_options()->scale == 0.1F);
  CHECK(complete({{"soft_cap", "30.5"}}).step_options()->soft_cap == 30.5F);
  CHECK(complete({}).step_options()->soft_cap == 0.0F);
  CHECK(with({{"scale", "1000000"}}).step_options()->scale == 1e6F);
}

TEST_CASE("config: candidates by the schedule of the profile, or one share") {
  const pkv_candidate_rule ours = complete({{"k", "10"}}).step_options()->rule;
  CHECK(ours.k == 10);
  CHECK(ours.steps == 4);
  CHECK(format::candidate_count(ours, 16383) == 1639);   // 10 %
  CHECK(format::candidate_count(ours, 32767) == 1639);   // 5 %
  CHECK(format::candidate_count(ours, 32768) == 656);    // 2 %
  CHECK(format::candidate_count(ours, 131072) == 1311);  // 1 %
  const pkv_candidate_rule paper = complete({{"k", "10"}}, "paper").step_options()->rule;
  CHECK(paper.steps == 2);
  CHECK(format::candidate_count(paper, 131071) == 13108);  // 10 %
  CHECK(format::candidate_count(paper, 131072) == 6554);   // 5 %
  const pkv_candidate_rule fixed = complete({{"candidates", "0.02"}}).step_options()->rule;
  CHECK(fixed.steps == 1);
  CHECK(fixed.below[0] == INT64_MAX);
  CHECK(fixed.ppm[0] == 20000);
  CHECK(complete({{"candidates", "1"}}).step_options()->rule.ppm[0] == 1000000);
  CHECK(complete({{"candidates", "1e-9"}}).step_options()->rule.ppm[0] == 1);
}

TEST_CASE("config: value_dim follows head_dim, and is 0 without values") {
  CHECK(complete({{"v_source", "k_prefix"}}).geometry(1)->value_dim == 128);
  CHECK(complete({{"v_source", "none"}, {"tail", "drop"}}).geometry(1)->value_dim == 0);
  CHECK(complete({{"v_source", "none"}, {"tail", "drop"}, {"value_dim", "0"}})
            .geometry(1)
            ->value_dim == 0);
  CHECK(complete({{"v_source", "k_prefix"}, {"value_dim", "64"}}).geometry(1)->value_dim == 64);
}

TEST_CASE("config: head_dim must be set, kv_heads positive") {
  check_refused(make().geometry(8).status(), {"head_dim is not set", "8..576"});
  check_refused(make().step_options().status(), {"head_dim is not set"});
  check_refused(complete({}).geometry(0).status(), {"kv_heads=0"});
  check_refused(complete({}).geometry(-1).status(), {"kv_heads=-1"});
}

TEST_CASE(
    "config: options that exclude each other are both named where the geometry is asked for") {
  const struct {
    std::vector<Choice> choices;
    std::vector<std::string> parts;
  } kCases[] = {
      {{{"head_dim", "96"}, {"rounds", "2"}}, {"rounds=2", "head_dim=96"}},
      {{{"v_source", "none"}, {"value_dim", "64"}}, {"value_dim=64", "v_source=none"}},
      {{{"value_dim", "0"}}, {"value_dim=0", "v_source=none"}},
      {{{"v_source", "k_prefix"}, {"value_dim", "0"}}, {"value_dim=0", "v_source=none"}},
      {{{"v_source", "k_prefix"}, {"value_dim", "136"}},
       {"value_dim=136", "head_dim=128", "v_source=k_prefix"}},
      {{{"v_source", "none"}}, {"tail=sampled", "v_source=none"}},
      {{{"v_source", "none"}, {"tail", "sketch2"}}, {"tail=sketch2", "v_source=none"}},
      {{{"v_source", "none"}, {"tail", "drop"}, {"value_norm", "on"}},
       {"value_norm=on", "v_source=none"}},
  };
  for (const auto& [choices, parts] : kCases) {
    check_refused(complete(choices).geometry(2).status(), parts);
  }
}

TEST_CASE("config: options that exclude each other are both named where the step is asked for") {
  const struct {
    const char* profile;
    std::vector<Choice> choices;
    std::vector<std::string> parts;
  } kCases[] = {
      {"paper", {{"vote_group", "heads"}}, {"vote_group=heads", "vote=graded"}},
      {"default", {{"rho_of", "centroids"}}, {"rho_of=centroids", "vote=tier"}},
      {"paper", {{"share", "0.9"}}, {"share=0.9", "rank=group"}},
      {"default", {{"v_source", "none"}}, {"tail=sampled", "v_source=none"}},
      {"default", {{"v_source", "none"}, {"tail", "mean"}}, {"tail=mean", "v_source=none"}},
      {"default", {{"v_source", "none"}, {"tail", "sketch4"}}, {"tail=sketch4", "v_source=none"}},
      {"paper", {{"tail_samples", "64"}}, {"tail_samples=64", "tail=drop"}},
      {"default", {{"k_min", "2"}}, {"k_min=2", "share=0"}},
      {"default", {{"share", "0.5"}, {"k_min", "101"}}, {"k_min=101", "k=100"}},
  };
  for (const auto& [profile, choices, parts] : kCases) {
    check_refused(complete(choices, profile).step_options().status(), parts);
  }
  CHECK(complete({{"v_source", "none"}, {"tail", "drop"}}).step_options().ok());
  CHECK(complete({{"share", "0.5"}, {"k_min", "100"}}).step_options().ok());
}

TEST_CASE("config: copies are independent") {
  Config one = complete({});
  Config two = one;
  CHECK(two.set("k", "5").ok());
  CHECK(get(one, "k") == "100");
}

}  // namespace
}  // namespace pkv
