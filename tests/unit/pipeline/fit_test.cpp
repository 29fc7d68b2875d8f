// Codec: fit, import, what append and plan rely on. docs/algorithm.md, section 2.
#include <limits>

#include "core/codec/fit.h"
#include "core/pipeline/stages.h"
#include "core/pipeline/step.h"
#include "tests/unit/pipeline/fixture.h"

namespace pkv::test {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::shared_ptr<const Codec> fit(const Machine& machine, const Config& config, Array& keys,
                                 Array* queries = nullptr, Array* values = nullptr) {
  const pkv_tensor query_tensor = queries == nullptr ? pkv_tensor{} : queries->tensor();
  const pkv_tensor value_tensor = values == nullptr ? pkv_tensor{} : values->tensor();
  return value_of(Codec::fit_sync(machine.stream, config, keys.tensor(),
                                  queries == nullptr ? nullptr : &query_tensor,
                                  values == nullptr ? nullptr : &value_tensor));
}

}  // namespace

TEST_CASE("fit: centre is the mean of the usable keys, also where the first ones are bad") {
  Machine machine;
  const Config config = config_of({{"head_dim", "8"}, {"tail", "mean"}});
  Array keys({2, 200, 8});
  fill_random(keys.numbers(), 1);
  // More bad keys than are looked at between two waits; head 1 has none.
  for (std::size_t t = 0; t < 70; ++t) keys.numbers()[t * 8 + t % 8] = t % 2 == 0 ? kNan : 3e38F;
  const auto codec = fit(machine, config, keys);
  for (std::size_t h = 0; h < 2; ++h) {
    for (std::size_t j = 0; j < 8; ++j) {
      double sum = 0;
      const std::size_t first = h == 0 ? 70 : 0;
      for (std::size_t t = first; t < 200; ++t) {
        sum += static_cast<double>(keys.numbers()[(h * 200 + t) * 8 + j]);
      }
      const double mean = sum / static_cast<double>(200 - first);
      // One rounding to fp32 of a mean below 1, and the pivot's own.
      CHECK(std::abs(static_cast<double>(codec->numbers().center()[h * 8 + j]) - mean) < 2e-7);
      CHECK(codec->numbers().balance()[h * 8 + j] == 1.0F);
    }
  }
}

namespace {

void keep_line(void* user, int32_t level, const char* text) {
  static_cast<std::vector<std::string>*>(user)->push_back(std::to_string(level) + " " + text);
}

}  // namespace

TEST_CASE("fit: few keys are worth a warning, which names the KV head") {
  std::vector<std::string> lines;
  const auto registry = value_of(
      Registry::create({.backend_path = "", .log = keep_line, .log_user = &lines, .log_level = 1}));
  Machine machine(value_of(registry->open_device("cpu_ref", 0)));
  const Config config = config_of({{"head_dim", "8"}, {"tail", "mean"}});
  Array enough({2, 256, 8}), few({2, 256, 8});
  few.data()[300 * 8] = kNan;  // a key of KV head 1
  fit(machine, config, enough);
  CHECK(lines.empty());
  fit(machine, config, few);
  REQUIRE(lines.size() == 1);
  CHECK(lines[0].starts_with("1 codec fitted on 255 keys of KV head 1"));
  fit(machine, config_of({{"head_dim", "8"}, {"tail", "mean"}, {"center", "off"}}), few);
  CHECK(lines.size() == 1);
}

TEST_CASE("fit: 0, 1 or 3 keys and no queries give a codec that works") {
  Machine machine;
  const Config config = config_of({{"head_dim", "8"}, {"tail", "mean"}});
  for (const int64_t n : {0, 1, 3}) {
    CAPTURE(n);
    Array keys({1, n, 8}, 2.5F);
    const auto codec = fit(machine, config, keys);
    for (const float center : codec->numbers().center()) CHECK(center == (n == 0 ? 0.0F : 2.5F));
    for (const float balance : codec->numbers().balance()) CHECK(balance == 1.0F);
    const auto index = value_of(Index::create(machine.device, codec, 1, 100));
    Array more({1, 50, 8});
    fill_random(more.numbers(), 2);
    require_ok(index->append(machine.stream, 0, more.tensor(), nullptr, Index::Mode::kSync));
    CHECK(index->good_counts()[0] == 50);
  }
}

TEST_CASE("fit: all keys bad is no keys") {
  Machine machine;
  Array keys({1, 100, 8}, kNan);
  const auto codec = fit(machine, config_of({{"head_dim", "8"}, {"tail", "mean"}}), keys);
  for (const float center : codec->numbers().center()) CHECK(center == 0.0F);
}

TEST_CASE("fit: queries balance, options switch centre and balance off") {
  Machine machine;
  Array keys({2, 300, 8}), queries({4, 30, 8});
  fill_random(keys.numbers(), 1);
  fill_random(queries.numbers(), 2);
  for (std::size_t i = 0; i < queries.numbers().size(); i += 8) queries.numbers()[i] *= 9.0F;
  const auto both = fit(machine, config_of({{"head_dim", "8"}, {"tail", "mean"}}), keys, &queries);
  // A coordinate 9 times as wide in the queries: 3 times the geometric mean of the others.
  CHECK(both->numbers().balance()[0] > 1.5F);
  CHECK(both->numbers().balance()[1] < 1.0F);
  const auto off =
      fit(machine,
          config_of({{"head_dim", "8"}, {"tail", "mean"}, {"center", "off"}, {"balance", "off"}}),
          keys, &queries);
  for (const float center : off->numbers().center()) CHECK(center == 0.0F);
  for (const float balance : off->numbers().balance()) CHECK(balance == 1.0F);
  CHECK_FALSE(off->options().center);
  CHECK(both->options().center);
}

TEST_CASE("fit: the value centre is the mean of the values, given or as a prefix of the keys") {
  Machine machine;
  Array keys({1, 40, 16}), values({1, 40, 8});
  fill_random(keys.numbers(), 1);
  for (std::size_t t = 0; t < 40; ++t) {
    for (std::size_t j = 0; j < 8; ++j) values.numbers()[t * 8 + j] = keys.numbers()[t * 16 + j];
  }
  const Options options = {{"head_dim", "16"}, {"value_dim", "8"}};  // tail=sampled has a sketch
  Options prefix = options;
  prefix.push_back({"v_source", "k_prefix"});
  const auto given = fit(machine, config_of(options), keys, nullptr, &values);
  const auto implied = fit(machine, config_of(prefix), keys);
  CHECK(given->numbers().value_center().size() == 8);
  for (std::size_t j = 0; j < 8; ++j) {
    CHECK(given->numbers().value_center()[j] == implied->numbers().value_center()[j]);
    // The keys' own centre: the same mean, about another pivot.
    CHECK(std::abs(given->numbers().value_center()[j] - given->numbers().center()[j]) < 1e-6F);
  }
  const pkv_tensor tensor = keys.tensor();
  check_refused(
      Codec::fit_sync(machine.stream, config_of(options), tensor, nullptr, nullptr).status(),
      absl::StatusCode::kInvalidArgument, {"values=NULL", "sketch"});
}

namespace {

const Options kKeys = {{"head_dim", "16"}, {"tail", "mean"}, {"fit", "keys"}};
const Options kPicked = {{"head_dim", "16"}, {"tail", "mean"}, {"fit", "picked"}};

// Two clusters per KV head, and queries [4, m, 16] of 2 KV heads that look towards the first: every
// query picks there.
struct Clusters {
  Clusters() {
    fill_random(keys.numbers(), 1);
    fill_random(queries.numbers(), 2);
    for (std::size_t i = 0; i < keys.numbers().size(); ++i) {
      const std::size_t t = i / 16 % kTokens;
      keys.numbers()[i] += t % 3 == 0 ? 1.5F : -1.0F;
      if (i % 16 == 5) keys.numbers()[i] *= 4.0F;
    }
    for (std::size_t i = 0; i < queries.numbers().size(); ++i) queries.numbers()[i] += 0.75F;
  }
  static constexpr int64_t kTokens = 237, kQueries = 21;  // no multiple of a batch
  Array keys{{2, kTokens, 16}}, queries{{4, kQueries, 16}};
};

// The picks [h, n] by plans on an index with the first pass's codec, one query position at a time.
std::vector<int> picks_by_plans(const Machine& machine, Clusters& c) {
  const auto codec = fit(machine, config_of(kKeys), c.keys, &c.queries);
  const auto index = value_of(Index::create(machine.device, codec, 1, Clusters::kTokens));
  require_ok(index->append(machine.stream, 0, c.keys.tensor(), nullptr, Index::Mode::kSync));
  Options options = kKeys;
  options.push_back({"k", "0"});
  options.push_back({"candidates", "0.1"});
  pkv_plan_desc desc{};
  desc.batch = 1;
  desc.query_heads = 4;
  desc.owns_scratch = 1;
  const auto plan = value_of(Plan::create(index, config_of(options), desc));
  const auto most = static_cast<std::size_t>(plan->candidates());
  std::vector<int> picks(2 * Clusters::kTokens);
  for (int64_t m = 0; m < Clusters::kQueries; ++m) {
    Array query({1, 4, 16});
    for (std::size_t head = 0; head < 4; ++head) {
      const std::size_t row = (head * Clusters::kQueries + static_cast<std::size_t>(m)) * 16;
      std::copy_n(c.queries.numbers().begin() + static_cast<std::ptrdiff_t>(row), 16,
                  query.numbers().begin() + static_cast<std::ptrdiff_t>(head * 16));
    }
    std::vector<int32_t> counts(2), candidates(2 * most), candidate_counts(2);
    std::vector<float> estimates(4 * most), rest(4);
    pkv_hits hits{};
    hits.counts = counts.data();
    hits.candidates = candidates.data();
    hits.candidate_counts = candidate_counts.data();
    hits.estimates = estimates.data();
    hits.rest_lse = rest.data();
    require_ok(retrieve(*plan, machine.stream, query.tensor(), nullptr, hits));
    for (std::size_t h = 0; h < 2; ++h) {
      for (int32_t i = 0; i < candidate_counts[h]; ++i) {
        ++picks[h * Clusters::kTokens +
                static_cast<std::size_t>(candidates[h * most + static_cast<std::size_t>(i)])];
      }
    }
  }
  return picks;
}

bool is_same(std::span<const float> a, std::span<const float> b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end());
}

}  // namespace

TEST_CASE("fit: picked is the weighted mean and spread of the keys that the queries pick") {
  Machine machine;
  Clusters c;
  const auto picks = picks_by_plans(machine, c);
  const auto picked = fit(machine, config_of(kPicked), c.keys, &c.queries);
  const auto all = fit(machine, config_of(kKeys), c.keys, &c.queries);
  CHECK(picked->options().fit_picked);
  CHECK_FALSE(all->options().fit_picked);
  for (std::size_t h = 0; h < 2; ++h) {
    std::vector<long double> mean(16), square(16), q_square(16), raw(16);
    long double W = 0;
    for (std::size_t t = 0; t < Clusters::kTokens; ++t) {
      const long double o = picks[h * Clusters::kTokens + t];
      W += o;
      for (std::size_t j = 0; j < 16; ++j) {
        const long double k = c.keys.numbers()[(h * Clusters::kTokens + t) * 16 + j];
        mean[j] += o * k;
        square[j] += o * k * k;
      }
    }
    REQUIRE(W == 24 * Clusters::kQueries);  // ceil(10 % of 237) per position
    long double log_sum = 0;
    for (std::size_t j = 0; j < 16; ++j) {
      for (std::size_t m = 0; m < Clusters::kQueries; ++m) {
        const auto at = [&](std::size_t g) {
          return c.queries.numbers()[((2 * h + g) * Clusters::kQueries + m) * 16 + j];
        };
        const float sum = at(0) + at(1);
        q_square[j] += static_cast<long double>(sum) * static_cast<long double>(sum);
      }
      mean[j] /= W;
      raw[j] = std::sqrt(std::sqrt(q_square[j] / Clusters::kQueries) /
                         std::sqrt(square[j] / W - mean[j] * mean[j]));
      log_sum += std::log(raw[j]);
    }
    for (std::size_t j = 0; j < 16; ++j) {
      // Doubles about another pivot, then one rounding to fp32.
      CHECK(static_cast<double>(picked->numbers().center()[h * 16 + j]) ==
            doctest::Approx(static_cast<double>(mean[j])).epsilon(1e-6));
      CHECK(static_cast<double>(picked->numbers().balance()[h * 16 + j]) ==
            doctest::Approx(static_cast<double>(raw[j] / std::exp(log_sum / 16))).epsilon(1e-6));
      // A third of all keys lie at 1.5, the others at -1: not the centre of the picked.
      if (j != 5) {
        CHECK(picked->numbers().center()[h * 16 + j] > all->numbers().center()[h * 16 + j] + 0.5F);
      }
    }
  }
}

TEST_CASE("fit: picked whatever the codec's vote and values are, and with strided queries") {
  Machine machine;
  Clusters c;
  const auto picked = fit(machine, config_of(kPicked), c.keys, &c.queries);
  Options tier = kPicked;
  tier.push_back({"vote", "tier"});
  const auto same = fit(machine, config_of(tier), c.keys, &c.queries);
  CHECK(is_same(same->numbers().center(), picked->numbers().center()));
  CHECK(is_same(same->numbers().balance(), picked->numbers().balance()));

  // Values and a sketch: the value centre is the first pass's, of every key once.
  Array values({2, Clusters::kTokens, 16});
  fill_random(values.numbers(), 3);
  Options sampled = kPicked;
  sampled.push_back({"tail", "sampled"});
  Options first = kKeys;
  first.push_back({"tail", "sampled"});
  const auto sketched = fit(machine, config_of(sampled), c.keys, &c.queries, &values);
  const auto once = fit(machine, config_of(first), c.keys, &c.queries, &values);
  CHECK(is_same(sketched->numbers().center(), picked->numbers().center()));
  CHECK(is_same(sketched->numbers().balance(), picked->numbers().balance()));
  CHECK(is_same(sketched->numbers().value_center(), once->numbers().value_center()));

  Array position_first({Clusters::kQueries, 4, 16});
  for (int64_t head = 0; head < 4; ++head) {
    for (int64_t m = 0; m < Clusters::kQueries; ++m) {
      std::copy_n(c.queries.data() + (head * Clusters::kQueries + m) * 16, 16,
                  position_first.data() + (m * 4 + head) * 16);
    }
  }
  const int64_t shape[3] = {4, Clusters::kQueries, 16}, strides[3] = {16, 64, 1};
  pkv_tensor view = position_first.tensor();
  view.shape = shape;
  view.strides = strides;
  const auto strided = value_of(
      Codec::fit_sync(machine.stream, config_of(kPicked), c.keys.tensor(), &view, nullptr));
  CHECK(is_same(strided->numbers().center(), picked->numbers().center()));
  CHECK(is_same(strided->numbers().balance(), picked->numbers().balance()));
}

TEST_CASE("fit: without queries, or with centre and balance off, picked is the first pass") {
  Machine machine;
  Clusters c;
  const auto check_same = [&](const Options& more, Array* queries) {
    Options picked = kPicked, keys = kKeys;
    picked.insert(picked.end(), more.begin(), more.end());
    keys.insert(keys.end(), more.begin(), more.end());
    const auto one = fit(machine, config_of(picked), c.keys, queries);
    const auto two = fit(machine, config_of(keys), c.keys, queries);
    CHECK(is_same(one->numbers().center(), two->numbers().center()));
    CHECK(is_same(one->numbers().balance(), two->numbers().balance()));
  };
  check_same({}, nullptr);
  check_same({{"center", "off"}, {"balance", "off"}}, &c.queries);
  Array none({4, 0, 16});
  check_same({}, &none);
  const pkv_tensor absent{};  // ndim 0
  const auto one = value_of(
      Codec::fit_sync(machine.stream, config_of(kPicked), c.keys.tensor(), &absent, nullptr));
  CHECK(
      is_same(one->numbers().center(), fit(machine, config_of(kKeys), c.keys)->numbers().center()));
  Array no_keys({2, 0, 16});
  const auto empty = fit(machine, config_of(kPicked), no_keys, &c.queries);
  for (const float center : empty->numbers().center()) CHECK(center == 0.0F);
}

TEST_CASE("fit: a KV head of which no key was picked keeps the first pass") {
  Machine machine;
  Clusters c;
  for (int64_t m = 0; m < Clusters::kQueries; ++m) {
    c.queries.data()[(2 * Clusters::kQueries + m) * 16 + 3] = kNan;  // query head 2: of KV head 1
  }
  const auto picked = fit(machine, config_of(kPicked), c.keys, &c.queries);
  const auto all = fit(machine, config_of(kKeys), c.keys, &c.queries);
  const auto half = [](std::span<const float> numbers, std::size_t head) {
    return numbers.subspan(head * 16, 16);
  };
  CHECK_FALSE(is_same(half(picked->numbers().center(), 0), half(all->numbers().center(), 0)));
  CHECK(is_same(half(picked->numbers().center(), 1), half(all->numbers().center(), 1)));
  CHECK(is_same(half(picked->numbers().balance(), 1), half(all->numbers().balance(), 1)));
}

TEST_CASE("fit: fewer than 32 picked keys say too little, the first pass stands") {
  Machine machine;
  for (const int64_t count : {310, 311}) {  // of which one query position picks 31, or 32
    CAPTURE(count);
    Array keys({2, count, 16}), queries({4, 1, 16});
    fill_random(keys.numbers(), 1);
    fill_random(queries.numbers(), 2);
    const auto picked = fit(machine, config_of(kPicked), keys, &queries);
    const auto all = fit(machine, config_of(kKeys), keys, &queries);
    CHECK(is_same(picked->numbers().center(), all->numbers().center()) == (count == 310));
    CHECK(is_same(picked->numbers().balance(), all->numbers().balance()) == (count == 310));
  }
}

TEST_CASE("fit: a key whose value is bad is left out of both passes") {
  Machine machine;
  Clusters c;
  Array values({2, Clusters::kTokens, 16});
  fill_random(values.numbers(), 3);
  // The best key of all, far away; its value is no number.
  for (int64_t j = 0; j < 16; ++j) c.keys.data()[j] = 100.0F;
  values.data()[7] = kNan;
  Options sampled = kPicked;
  sampled.push_back({"tail", "sampled"});
  const auto codec = fit(machine, config_of(sampled), c.keys, &c.queries, &values);
  for (int64_t j = 0; j < 16; ++j) {
    if (j != 5) CHECK(codec->numbers().center()[static_cast<std::size_t>(j)] < 3.0F);
  }
}

TEST_CASE("fit: strides, dtypes and offsets of the keys do not matter") {
  Machine machine;
  const Config config = config_of({{"head_dim", "8"}, {"tail", "mean"}});
  Array keys({2, 20, 8}), token_first({20, 2, 8});
  fill_random(keys.numbers(), 1);
  for (std::size_t h = 0; h < 2; ++h) {
    for (std::size_t t = 0; t < 20; ++t) {
      for (std::size_t j = 0; j < 8; ++j) {
        token_first.numbers()[(t * 2 + h) * 8 + j] = keys.numbers()[(h * 20 + t) * 8 + j];
      }
    }
  }
  const int64_t shape[3] = {2, 20, 8}, strides[3] = {8, 16, 1};
  pkv_tensor view = token_first.tensor();
  view.shape = shape;
  view.strides = strides;
  const auto packed = fit(machine, config, keys);
  const auto strided = value_of(Codec::fit_sync(machine.stream, config, view, nullptr, nullptr));
  CHECK(std::vector<float>(packed->numbers().center().begin(), packed->numbers().center().end()) ==
        std::vector<float>(strided->numbers().center().begin(), strided->numbers().center().end()));
}

TEST_CASE("fit: shapes and dtypes are refused by name") {
  Machine machine;
  const Config config = config_of({{"head_dim", "8"}, {"tail", "mean"}});
  const auto refused = [&](Array& keys, Array* queries, Array* values,
                           std::initializer_list<std::string_view> parts) {
    const pkv_tensor query_tensor = queries == nullptr ? pkv_tensor{} : queries->tensor();
    const pkv_tensor value_tensor = values == nullptr ? pkv_tensor{} : values->tensor();
    check_refused(Codec::fit_sync(machine.stream, config, keys.tensor(),
                                  queries == nullptr ? nullptr : &query_tensor,
                                  values == nullptr ? nullptr : &value_tensor)
                      .status(),
                  absl::StatusCode::kInvalidArgument, parts);
  };
  Array keys({2, 5, 8}), flat({5, 8}), wide({2, 5, 16}), no_heads({0, 5, 8}), three({3, 5, 8}),
      short_values({2, 4, 8});
  refused(flat, nullptr, nullptr, {"keys", "ndim=2"});
  refused(wide, nullptr, nullptr, {"keys", "16", "8"});
  refused(no_heads, nullptr, nullptr, {"keys", "=0"});
  refused(keys, &three, nullptr, {"query_heads=3", "kv_heads=2"});
  refused(keys, &wide, nullptr, {"queries", "16"});
  refused(keys, nullptr, &short_values, {"values", "4", "5"});
  pkv_tensor integers = keys.tensor();
  integers.dtype = PKV_DTYPE_U8;
  check_refused(Codec::fit_sync(machine.stream, config, integers, nullptr, nullptr).status(),
                absl::StatusCode::kInvalidArgument, {"keys", "u8"});
  check_refused(Codec::fit_sync(machine.stream, value_of(Config::create("default")), keys.tensor(),
                                nullptr, nullptr)
                    .status(),
                absl::StatusCode::kInvalidArgument, {"head_dim is not set"});
}

TEST_CASE("codec: the device has exactly the numbers of the host") {
  Machine machine;
  const auto codec = codec_of(
      machine, config_of({{"head_dim", "24"}, {"value_dim", "40"}, {"tail", "sketch2"}}), 3);
  const pkv_codec_params params = codec->params();
  const CodecParams& numbers = codec->numbers();
  const auto same = [](const float* device, std::span<const float> host) {
    return std::equal(host.begin(), host.end(), device);
  };
  CHECK(same(params.center, numbers.center()));
  CHECK(same(params.balance, numbers.balance()));
  CHECK(same(params.inv_balance, numbers.inv_balance()));
  CHECK(same(params.signs_1, numbers.signs_1()));
  CHECK(same(params.signs_2, numbers.signs_2()));
  CHECK(same(params.value_center, numbers.value_center()));
  CHECK(same(params.value_signs_1, numbers.value_signs_1()));
  CHECK(same(params.value_signs_2, numbers.value_signs_2()));
  CHECK(params.geometry->kv_heads == 3);
  const pkv_codec_params plain =
      codec_of(machine, config_of({{"head_dim", "32"}, {"tail", "mean"}}), 1)->params();
  CHECK(plain.signs_2 == nullptr);
  CHECK(plain.value_center == nullptr);
}

}  // namespace pkv::test
