// attend on plans. docs/algorithm.md, section 8.
#include "tests/unit/pipeline/step_tools.h"

namespace pkv::test {
namespace {

// The reference rounds once from double; two paths may order their sums differently.
bool is_close(const std::vector<float>& a, const std::vector<float>& b) {
  REQUIRE(a.size() == b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!(std::fabs(a[i] - b[i]) <= 1e-5F * (1.0F + std::fabs(b[i])))) return false;
  }
  return true;
}

pkv_dense part_of_zone(Zone& zone, const std::vector<int64_t>& lengths) {
  pkv_dense dense{};
  dense.rows.keys = zone.keys.tensor();
  dense.rows.values = zone.values.tensor();
  dense.lengths = lengths.data();
  return dense;
}

struct Setup {
  explicit Setup(const Options& more = {}) {
    Options options = {{"head_dim", "16"}, {"value_dim", "8"}, {"k", "6"}};
    options.insert(options.end(), more.begin(), more.end());
    config = config_of(options);
    index = index_with(machine, *config, 2, zone, 64);
    fill_random(query.numbers(), 5);
  }
  Machine machine;
  std::optional<Config> config;
  Zone zone{{40, 25}, 2, 40, 16, 8};
  std::shared_ptr<Index> index;
  Array query{{2, 4, 16}};
};

}  // namespace

TEST_CASE("attend: with k >= n every key is fetched, and the result is dense attention") {
  for (const char* tail : {"drop", "mean", "sampled", "sketch2", "sketch4"}) {
    for (const char* k : {"40", "41"}) {
      CAPTURE(tail);
      CAPTURE(k);
      Setup setup({{"k", k}, {"tail", tail}});
      Step sparse(setup.machine, setup.index, *setup.config, {0, 1}, 4);
      Step dense(setup.machine, setup.index, *setup.config, {0, 1}, 4);
      require_ok(sparse.retrieve(setup.query));
      require_ok(sparse.fetch(setup.zone));
      require_ok(sparse.attend(setup.query));
      require_ok(dense.attend(setup.query, {part_of_zone(setup.zone, setup.zone.lengths)}, false));
      CHECK(is_close(sparse.output->numbers(), dense.output->numbers()));
      CHECK(is_close(sparse.lse->values(), dense.lse->values()));
      CHECK(sparse.guards_hold());
    }
  }
}

TEST_CASE("attend: the default tail, with one sample, with a few, with all there are") {
  for (const char* samples : {"1", "3", "512"}) {
    CAPTURE(samples);
    std::vector<std::vector<float>> outputs;
    for (const char* tail : {"sampled", "mean"}) {
      Setup setup({{"tail", tail}, {"tail_samples", samples}, {"k", "2"}, {"candidates", "0.1"}});
      Step step(setup.machine, setup.index, *setup.config, {0, 1}, 4);
      require_ok(step.retrieve(setup.query));
      require_ok(step.fetch(setup.zone));
      require_ok(step.attend(setup.query));
      CHECK(step.guards_hold());
      for (const float number : step.output->numbers()) CHECK(std::isfinite(number));
      outputs.push_back(step.output->numbers());
      for (const float number : step.lse->values()) CHECK(std::isfinite(number));
    }
    CHECK_FALSE(outputs[0] == outputs[1]);
  }
}

TEST_CASE("attend: an empty zone is attention over the dense parts alone") {
  Setup setup;
  const auto empty = value_of(Index::create(setup.machine.device, setup.index->codec(), 2, 64));
  Step zone_less(setup.machine, empty, *setup.config, {0, 1}, 4);
  Step dense(setup.machine, setup.index, *setup.config, {0, 1}, 4);
  const std::vector<int64_t> five = {5, 0};
  require_ok(zone_less.retrieve(setup.query));
  require_ok(zone_less.fetch(setup.zone));
  require_ok(zone_less.attend(setup.query, {part_of_zone(setup.zone, five)}));
  require_ok(dense.attend(setup.query, {part_of_zone(setup.zone, five)}, false));
  CHECK(zone_less.output->numbers() == dense.output->numbers());
  CHECK(zone_less.lse->values() == dense.lse->values());
  // Entry 1 has nothing to attend to at all.
  CHECK(part_of(dense.output->numbers(), 1, 2) == std::vector<float>(32, 0.0F));
  CHECK(part_of(dense.lse->values(), 1, 2) == std::vector<float>(4, -kInf));
}

TEST_CASE("attend: parts may be split in any way, also with parts of no tokens") {
  Setup setup;
  Step whole(setup.machine, setup.index, *setup.config, {0, 1}, 4);
  Step split(setup.machine, setup.index, *setup.config, {0, 1}, 4);
  require_ok(whole.attend(setup.query, {part_of_zone(setup.zone, setup.zone.lengths)}, false));
  const std::vector<int64_t> first_lengths = {10, 10}, last_lengths = {30, 15};
  const int64_t rest_shape[4] = {2, 2, 30, 16}, rest_value_shape[4] = {2, 2, 30, 8};
  const int64_t strides[4] = {2 * 40 * 16, 40 * 16, 16, 1};
  const int64_t value_strides[4] = {2 * 40 * 8, 40 * 8, 8, 1};
  const int64_t no_shape[4] = {2, 2, 0, 16}, no_value_shape[4] = {2, 2, 0, 8};
  pkv_dense rest = part_of_zone(setup.zone, last_lengths);
  rest.rows.keys.shape = rest_shape;
  rest.rows.keys.strides = strides;
  rest.rows.keys.byte_offset = 10 * 16 * sizeof(float);
  rest.rows.values.shape = rest_value_shape;
  rest.rows.values.strides = value_strides;
  rest.rows.values.byte_offset = 10 * 8 * sizeof(float);
  pkv_dense nothing{};
  nothing.rows.keys.ndim = nothing.rows.values.ndim = 4;
  nothing.rows.keys.dtype = nothing.rows.values.dtype = PKV_DTYPE_BF16;
  nothing.rows.keys.shape = no_shape;
  nothing.rows.values.shape = no_value_shape;
  require_ok(split.attend(
      setup.query, {nothing, rest, nothing, part_of_zone(setup.zone, first_lengths)}, false));
  CHECK(is_close(split.output->numbers(), whole.output->numbers()));
  CHECK(is_close(split.lse->values(), whole.lse->values()));
}

TEST_CASE("attend: with v_source=k_prefix values may be absent or given") {
  Setup prefix(Options{{"v_source", "k_prefix"}});
  Step implied(prefix.machine, prefix.index, *prefix.config, {1, 0}, 4);
  require_ok(implied.retrieve(prefix.query));
  require_ok(implied.fetch(prefix.zone));
  const std::vector<int64_t> lengths = {7, 9};
  pkv_dense dense = part_of_zone(prefix.zone, lengths);
  dense.rows.values = pkv_tensor{};
  require_ok(implied.attend(prefix.query, {dense}));
  const auto implied_output = implied.output->numbers();

  const auto first_dims = [](Array& keys) {
    std::vector<float> out;
    for (std::size_t i = 0; i < keys.numbers().size(); ++i) {
      if (i % 16 < 8) out.push_back(keys.numbers()[i]);
    }
    return out;
  };
  Array dense_values({2, 2, 40, 8});
  dense_values.numbers() = first_dims(prefix.zone.keys);
  dense.rows.values = dense_values.tensor();
  require_ok(implied.attend(prefix.query, {dense}));
  CHECK(implied.output->numbers() == implied_output);
  CHECK_FALSE(std::isnan(implied_output[0]));
}

TEST_CASE("attend: the tail needs the values of all tokens") {
  Setup setup(Options{{"tail", "mean"}});
  const auto without = index_with(setup.machine, *setup.config, 2, setup.zone, 64, false);
  Step step(setup.machine, without, *setup.config, {0, 1}, 4);
  require_ok(step.retrieve(setup.query));
  require_ok(step.fetch(setup.zone));
  check_refused(step.attend(setup.query), absl::StatusCode::kFailedPrecondition,
                {"tail", "sequence 0", "without values"});
  require_ok(step.attend(setup.query, {part_of_zone(setup.zone, setup.zone.lengths)}, false));
  Setup drop(Options{{"tail", "drop"}});
  const auto dropped = index_with(drop.machine, *drop.config, 2, drop.zone, 64, false);
  Step no_tail(drop.machine, dropped, *drop.config, {0, 1}, 4);
  require_ok(no_tail.retrieve(drop.query));
  require_ok(no_tail.fetch(drop.zone));
  require_ok(no_tail.attend(drop.query));
}

TEST_CASE("attend: a sketch works with k = 0 and no rows") {
  for (const char* tail : {"sketch4", "sampled"}) {
    Setup setup({{"k", "0"}, {"tail", tail}});
    Step step(setup.machine, setup.index, *setup.config, {0, 1}, 4);
    require_ok(step.retrieve(setup.query));
    require_ok(step.attend(setup.query));
    for (const float number : step.output->numbers()) CHECK(std::isfinite(number));
    for (const float number : step.lse->values()) CHECK(std::isfinite(number));
  }
}

TEST_CASE("attend: arguments are refused by name") {
  Setup setup;
  Step step(setup.machine, setup.index, *setup.config, {0, 1}, 4);
  require_ok(step.retrieve(setup.query));
  require_ok(step.fetch(setup.zone));
  const auto invalid = absl::StatusCode::kInvalidArgument;
  for (const int64_t wrong : {int64_t{-1}, int64_t{41}, int64_t{1} << 40}) {
    const std::vector<int64_t> lengths = {3, wrong};
    check_refused(step.attend(setup.query, {part_of_zone(setup.zone, lengths)}), invalid,
                  {"dense[0].lengths[1]=" + std::to_string(wrong), "0..40"});
  }
  const std::vector<int64_t> lengths = {3, 3};
  const pkv_dense good = part_of_zone(setup.zone, lengths);
  pkv_dense no_values = good;
  no_values.rows.values.ndim = 0;
  check_refused(step.attend(setup.query, {good, no_values}), invalid, {"dense[1].values"});
  pkv_dense narrow = good;
  narrow.rows.values = setup.zone.keys.tensor();
  check_refused(step.attend(setup.query, {narrow}), invalid, {"dense[0].values", "16", "8"});
  Array heads({2, 2, 16});
  check_refused(step.attend(heads), invalid, {"query", "2", "4"});

  pkv_attention attention{};
  attention.query = setup.query.tensor();
  attention.output = step.output->tensor();
  attention.scratch = step.scratch_memory();
  attention.rows.keys = step.row_keys->tensor();
  attention.rows.values = step.row_values->tensor();
  const auto attend_with = [&](const pkv_attention& a, const pkv_hits* hits) {
    return attend(*step.plan, setup.machine.stream, a, hits);
  };
  require_ok(attend_with(attention, &step.hits));
  pkv_attention changed = attention;
  changed.dense_count = 5;
  check_refused(attend_with(changed, &step.hits), invalid, {"dense_count=5", "0..4"});
  changed = attention;
  changed.rows.keys.ndim = 0;
  check_refused(attend_with(changed, &step.hits), invalid, {"rows.keys"});
  check_refused(attend_with(attention, nullptr), invalid, {"rows.keys", "without hits"});
  changed = attention;
  changed.output.dtype = PKV_DTYPE_I32;
  check_refused(attend_with(changed, &step.hits), invalid, {"output", "i32"});
  changed = attention;
  changed.output = changed.query;
  changed.output.shape = step.output->shape().data();
  check_refused(attend_with(changed, &step.hits), invalid, {"output", "query"});
  changed = attention;
  changed.scratch = nullptr;
  check_refused(attend_with(changed, &step.hits), invalid, {"scratch=NULL"});
  for (auto pkv_hits::*pointer : {&pkv_hits::positions, &pkv_hits::counts, &pkv_hits::candidates,
                                  &pkv_hits::candidate_counts}) {
    pkv_hits hits = step.hits;
    hits.*pointer = nullptr;
    check_refused(attend_with(attention, &hits), invalid, {"=NULL"});
  }
  for (auto pkv_hits::*pointer :
       {&pkv_hits::estimates, &pkv_hits::rest_lse, &pkv_hits::sample_estimates}) {
    pkv_hits hits = step.hits;
    hits.*pointer = nullptr;
    check_refused(attend_with(attention, &hits), invalid, {"=NULL"});
  }
}

TEST_CASE("attend: v_source=none only retrieves") {
  Machine machine;
  const Config config =
      config_of({{"head_dim", "16"}, {"v_source", "none"}, {"tail", "drop"}, {"k", "3"}});
  Zone zone({10}, 2, 10, 16, 8);
  const auto index = index_with(machine, config, 2, zone, 16, false);
  Step step(machine, index, config, {0}, 2);
  Array query({1, 2, 16}, 0.5F);
  require_ok(step.retrieve(query));
  CHECK(step.counts->values() == std::vector<int32_t>{3, 3});
  check_refused(step.attend(query), absl::StatusCode::kInvalidArgument, {"v_source=none"});
}

}  // namespace pkv::test
