// Codec: fit, import, what append and plan rely on. docs/algorithm.md, section 2.
#include <limits>

#include "core/codec/fit.h"
#include "core/pipeline/stages.h"
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
  const Config config = config_of({{"head_dim", "8"}});
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

TEST_CASE("fit: 0, 1 or 3 keys and no queries give a codec that works (S128)") {
  Machine machine;
  const Config config = config_of({{"head_dim", "8"}});
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
  const auto codec = fit(machine, config_of({{"head_dim", "8"}}), keys);
  for (const float center : codec->numbers().center()) CHECK(center == 0.0F);
}

TEST_CASE("fit: queries balance, options switch centre and balance off") {
  Machine machine;
  Array keys({2, 300, 8}), queries({4, 30, 8});
  fill_random(keys.numbers(), 1);
  fill_random(queries.numbers(), 2);
  for (std::size_t i = 0; i < queries.numbers().size(); i += 8) queries.numbers()[i] *= 9.0F;
  const auto both = fit(machine, config_of({{"head_dim", "8"}}), keys, &queries);
  // A coordinate 9 times as wide in the queries: 3 times the geometric mean of the others.
  CHECK(both->numbers().balance()[0] > 1.5F);
  CHECK(both->numbers().balance()[1] < 1.0F);
  const auto off =
      fit(machine, config_of({{"head_dim", "8"}, {"center", "off"}, {"balance", "off"}}), keys,
          &queries);
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
  const Options options = {{"head_dim", "16"}, {"value_dim", "8"}, {"tail", "sketch4"}};
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

TEST_CASE("fit: strides, dtypes and offsets of the keys do not matter") {
  Machine machine;
  const Config config = config_of({{"head_dim", "8"}});
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
  const Config config = config_of({{"head_dim", "8"}});
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
  const pkv_codec_params plain = codec_of(machine, config_of({{"head_dim", "32"}}), 1)->params();
  CHECK(plain.signs_2 == nullptr);
  CHECK(plain.value_center == nullptr);
}

}  // namespace pkv::test
