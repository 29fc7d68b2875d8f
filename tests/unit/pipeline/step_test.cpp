// A whole step in one call: the same bits as its parts, by a backend that has a fused slot and by
// one that has not.
#include <cstring>

#include "backends/cpu_ref/device.h"
#include "tests/unit/pipeline/step_tools.h"

namespace pkv::test {
namespace {

// The reference with a fused slot made of its own stages; votes and rows lie in the scratch.
struct Fused {
  static const std::shared_ptr<const Host>& host() {
    static const std::shared_ptr<const Host> services = Host::create(Log());
    return services;
  }
  static const pkv_backend& reference() {
    constexpr uint32_t kAbi = (uint32_t{PKV_BACKEND_ABI_MAJOR} << 16) | PKV_BACKEND_ABI_MINOR;
    static const pkv_backend* table = pkv_cpu_ref_query(kAbi, host()->table());
    return *table;
  }
  static int& calls() {
    static int count = 0;
    return count;
  }

  static int64_t votes_bytes(const pkv_step_args& a) {
    const int64_t rows = int64_t{a.vote.batch.batch} * a.select.kv_heads;
    return (rows * a.vote.votes_stride * int64_t{sizeof(float)} + 255) / 256 * 256;
  }
  static int64_t rows_bytes(const pkv_step_args& a) {
    const pkv_geometry& g = *a.vote.codec.geometry;
    return int64_t{a.vote.batch.batch} * g.kv_heads * a.fetch.k * (g.head_dim + g.value_dim) * 4;
  }
  // As the stage would see it; of the rows only the dtype counts here.
  static pkv_attend_args with_rows(const pkv_step_args& a) {
    pkv_attend_args attend = a.attend;
    attend.row_keys = a.fetch.source_keys;
    attend.row_values = a.fetch.source_values;
    return attend;
  }
  static pkv_status supports(pkv_backend_device* device, const pkv_step_args* a) {
    const pkv_status status = reference().vote.supports(device, &a->vote);
    if (status != PKV_OK || a->attend.output.ndim == 0) return status;
    const pkv_attend_args attend = with_rows(*a);
    return reference().attend.supports(device, &attend);
  }
  static pkv_status scratch_bytes(pkv_backend_device* device, const pkv_step_args* a,
                                  int64_t* out) {
    int64_t most = 0;
    int64_t bytes = 0;
    reference().vote.scratch_bytes(device, &a->vote, &bytes);
    most = std::max(most, bytes);
    reference().select.scratch_bytes(device, &a->select, &bytes);
    most = std::max(most, bytes);
    reference().rerank.scratch_bytes(device, &a->rerank, &bytes);
    most = std::max(most, bytes);
    if (a->attend.output.ndim != 0) {
      const pkv_attend_args attend = with_rows(*a);
      reference().attend.scratch_bytes(device, &attend, &bytes);
      most = std::max(most, bytes);
    }
    *out = votes_bytes(*a) + rows_bytes(*a) + most;
    return PKV_OK;
  }
  static pkv_status run(pkv_backend_device* device, pkv_backend_stream* stream,
                        const pkv_step_args* given, void* scratch) {
    ++calls();
    pkv_step_args a = *given;
    CHECK(a.vote.votes == nullptr);
    auto* bytes = static_cast<char*>(scratch);
    char* rows = bytes + votes_bytes(a);
    void* stage = rows + rows_bytes(a);
    a.vote.votes = static_cast<float*>(scratch);
    a.select.votes = a.vote.votes;
    reference().vote.run(device, stream, &a.vote, stage);
    reference().select.run(device, stream, &a.select, stage);
    const pkv_status status = reference().rerank.run(device, stream, &a.rerank, stage);
    if (a.attend.output.ndim == 0) return status;
    const pkv_geometry& g = *a.vote.codec.geometry;
    int64_t key_shape[] = {a.fetch.batch.batch, g.kv_heads, a.fetch.k, g.head_dim};
    int64_t value_shape[] = {a.fetch.batch.batch, g.kv_heads, a.fetch.k, g.value_dim};
    if (a.fetch.k > 0) {
      CHECK(a.fetch.keys.ndim == 0);
      a.fetch.keys = at(a.fetch.source_keys, rows, key_shape);
      const int64_t key_bytes = key_shape[0] * key_shape[1] * key_shape[2] * key_shape[3] * 4;
      a.fetch.values = at(a.fetch.source_values, rows + key_bytes, value_shape);
      reference().fetch.run(device, stream, &a.fetch, nullptr);
      a.attend.row_keys = a.fetch.keys;
      a.attend.row_values = a.fetch.values;
    }
    return reference().attend.run(device, stream, &a.attend, stage);
  }
  static pkv_tensor at(pkv_tensor tensor, void* data, const int64_t* shape) {
    tensor.data = data;
    tensor.byte_offset = 0;
    tensor.shape = shape;
    tensor.strides = nullptr;
    return tensor;
  }
  static const pkv_backend& backend() {
    static const pkv_backend table = [] {
      pkv_backend fused = reference();
      fused.step = {supports, scratch_bytes, run};
      return fused;
    }();
    return table;
  }
};

std::shared_ptr<const Device> open_fused() {
  return value_of(Device::open(Fused::backend(), Fused::host(), 0));
}

struct Setup {
  Setup(const Options& more, bool is_fused)
      : machine(is_fused ? Machine(open_fused()) : Machine()) {
    Options options = {{"head_dim", "16"}, {"value_dim", "8"}, {"k", "6"}, {"candidates", "0.3"}};
    options.insert(options.end(), more.begin(), more.end());
    config = config_of(options);
    index = index_with(machine, *config, 2, zone, 64);
    fill_random(query.numbers(), 5);
    dense.rows.keys = dense_keys.tensor();
    dense.rows.values = dense_values.tensor();
    dense.lengths = dense_lengths;
    fill_random(dense_keys.numbers(), 6);
    fill_random(dense_values.numbers(), 7);
  }
  Machine machine;
  std::optional<Config> config;
  Zone zone{{40, 25, 33}, 2, 40, 16, 8};
  std::shared_ptr<Index> index;
  Array query{{2, 4, 16}}, dense_keys{{2, 2, 5, 16}}, dense_values{{2, 2, 5, 8}};
  int64_t dense_lengths[2] = {5, 3};
  pkv_dense dense{};
};

const std::vector<Options> kVariants = {
    {{"tail", "drop"}},
    {{"tail", "mean"}},
    {{"tail", "sampled"}, {"tail_samples", "7"}},
    {{"tail", "sketch2"}, {"tail_samples", "7"}},
    {{"tail", "sketch4"}, {"k", "0"}},
    {{"tail", "mean"}, {"v_source", "k_prefix"}},
    {{"tail", "drop"}, {"codec", "polar4"}, {"vote", "tier"}, {"share", "0.5"}, {"k_min", "2"}},
};

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return false;
  return a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

}  // namespace

TEST_CASE("step: one call gives the bits of retrieve, fetch and attend") {
  for (const Options& variant : kVariants) {
    for (const bool is_fused : {false, true}) {
      // Neighbours or not: lengths come from the index or are gathered.
      for (const std::vector<int32_t>& sequences : {std::vector{0, 1}, std::vector{2, 0}}) {
        CAPTURE(variant[0].second);
        CAPTURE(is_fused);
        CAPTURE(sequences[0]);
        Setup parts_setup(variant, false);
        Step parts(parts_setup.machine, parts_setup.index, *parts_setup.config, sequences, 4);
        require_ok(parts.retrieve(parts_setup.query));
        if (parts.plan->options().k > 0) require_ok(parts.fetch(parts_setup.zone));
        require_ok(parts.attend(parts_setup.query, {parts_setup.dense}));

        Setup setup(variant, is_fused);
        Step whole(setup.machine, setup.index, *setup.config, sequences, 4);
        CHECK(whole.plan->is_fused() == is_fused);
        const int calls = Fused::calls();
        require_ok(whole.run(whole.step_of(setup.query, setup.zone, {setup.dense})));
        CHECK(Fused::calls() == calls + (is_fused ? 1 : 0));
        CHECK(same_bits(whole.output->numbers(), parts.output->numbers()));
        CHECK(same_bits(whole.lse->values(), parts.lse->values()));
        CHECK(whole.positions->is_untouched());

        Step with_hits(setup.machine, setup.index, *setup.config, sequences, 4);
        require_ok(with_hits.run(with_hits.step_of(setup.query, setup.zone, {setup.dense}),
                                 with_hits.hits));
        CHECK(same_bits(with_hits.output->numbers(), parts.output->numbers()));
        CHECK(with_hits.positions->values() == parts.positions->values());
        CHECK(with_hits.counts->values() == parts.counts->values());
        CHECK(with_hits.candidates->values() == parts.candidates->values());
        CHECK(same_bits(with_hits.scores->values(), parts.scores->values()));
        CHECK(with_hits.guards_hold());

        // retrieve alone goes the same way.
        Step retrieved(setup.machine, setup.index, *setup.config, sequences, 4);
        require_ok(retrieved.retrieve(setup.query));
        CHECK(Fused::calls() == calls + (is_fused ? 3 : 0));
        CHECK(retrieved.positions->values() == parts.positions->values());
        CHECK(same_bits(retrieved.rest_lse->values(), parts.rest_lse->values()));
      }
    }
  }
}

TEST_CASE("step: what does not fit is refused before anything is written") {
  for (const bool is_fused : {false, true}) {
    CAPTURE(is_fused);
    Setup setup({}, is_fused);
    Step step(setup.machine, setup.index, *setup.config, {0, 1}, 4);
    const pkv_step good = step.step_of(setup.query, setup.zone, {setup.dense});
    const auto refuse = [&](pkv_step bad, absl::StatusCode code,
                            std::initializer_list<std::string_view> parts) {
      check_refused(step.run(bad), code, parts);
      for (const float number : step.output->numbers()) CHECK(std::isnan(number));
      CHECK(step.lse->is_untouched());
    };
    pkv_step bad = good;
    bad.dense_count = 5;
    refuse(bad, absl::StatusCode::kInvalidArgument, {"dense_count=5", "0..4"});
    bad = good;
    bad.source.keys.ndim = 0;
    refuse(bad, absl::StatusCode::kInvalidArgument, {"source.keys"});
    bad = good;
    bad.scratch = nullptr;
    refuse(bad, absl::StatusCode::kInvalidArgument, {"scratch"});
    Zone shorter({20, 25, 33}, 2, 39, 16, 8);
    bad = good;
    bad.source.keys = shorter.keys.tensor();
    bad.source.values = shorter.values.tensor();
    refuse(bad, absl::StatusCode::kOutOfRange, {"n=39", "40", "sequence 0"});
    bad = good;
    bad.output = setup.query.tensor();
    refuse(bad, absl::StatusCode::kInvalidArgument, {"output"});
  }
  Setup none({{"k", "0"}}, false);
  Step step(none.machine, none.index, *none.config, {0, 1}, 4);
  pkv_step bad = step.step_of(none.query, none.zone);
  bad.source.keys = none.zone.keys.tensor();
  check_refused(step.run(bad), absl::StatusCode::kInvalidArgument, {"source", "k=0"});
}

}  // namespace pkv::test
