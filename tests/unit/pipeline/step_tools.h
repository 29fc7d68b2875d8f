// A decoding step of the tests: an index with its K and V, a plan, and everything a step writes,
// between sentinels.
#pragma once

#include <cmath>
#include <cstring>
#include <limits>
#include <optional>

#include "core/pipeline/step.h"
#include "tests/unit/pipeline/fixture.h"

namespace pkv::test {

inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
inline constexpr float kInf = std::numeric_limits<float>::infinity();

// K and V of all sequences [sequences, h, n, width], random; past a sequence's length NaN.
struct Zone {
  Zone(std::vector<int64_t> lengths_of, int32_t kv_heads, int64_t tokens, int32_t dim,
       int32_t value_dim)
      : lengths(std::move(lengths_of)),
        keys({static_cast<int64_t>(lengths.size()), kv_heads, tokens, dim}, kNan),
        values({static_cast<int64_t>(lengths.size()), kv_heads, tokens, value_dim}, kNan) {
    for (std::size_t s = 0; s < lengths.size(); ++s) {
      for (int32_t h = 0; h < kv_heads; ++h) {
        fill(keys, s, h, tokens, dim, 1000 + static_cast<uint32_t>(s) * 10);
        fill(values, s, h, tokens, value_dim, 2000 + static_cast<uint32_t>(s) * 10);
      }
    }
  }
  // [h, count, width] of one sequence, from token `begin` on.
  struct View {
    pkv_tensor tensor;
    std::vector<int64_t> shape, strides;
  };
  static void view(Array& all, std::size_t sequence, int64_t begin, int64_t count, View& out) {
    const auto& shape = all.shape();
    out.tensor = all.tensor();
    out.shape = {shape[1], count, shape[3]};
    out.strides = {shape[2] * shape[3], shape[3], 1};
    out.tensor.ndim = 3;
    out.tensor.shape = out.shape.data();
    out.tensor.strides = out.strides.data();
    const int64_t offset =
        (static_cast<int64_t>(sequence) * shape[1] * shape[2] + begin) * shape[3];
    out.tensor.byte_offset = static_cast<uint64_t>(offset) * sizeof(float);
  }

  std::vector<int64_t> lengths;
  Array keys, values;

 private:
  void fill(Array& array, std::size_t s, int32_t h, int64_t tokens, int32_t width, uint32_t seed) {
    std::vector<float> numbers(static_cast<std::size_t>(lengths[s] * width));
    fill_random(numbers, seed + static_cast<uint32_t>(h));
    const int64_t row = (static_cast<int64_t>(s) * array.shape()[1] + h) * tokens * width;
    std::copy(numbers.begin(), numbers.end(), array.data() + row);
  }
};

inline std::shared_ptr<Index> index_with(const Machine& machine, const Config& config,
                                         int32_t kv_heads, Zone& zone, int64_t capacity,
                                         bool with_values = true) {
  const auto index = value_of(Index::create(machine.device, codec_of(machine, config, kv_heads),
                                            static_cast<int32_t>(zone.lengths.size()), capacity));
  for (std::size_t s = 0; s < zone.lengths.size(); ++s) {
    Zone::View keys, values;
    Zone::view(zone.keys, s, 0, zone.lengths[s], keys);
    Zone::view(zone.values, s, 0, zone.lengths[s], values);
    require_ok(index->append(machine.stream, static_cast<int32_t>(s), keys.tensor,
                             with_values ? &values.tensor : nullptr, Index::Mode::kSync));
  }
  return index;
}

// `count` values, with others in front and behind that nobody may touch.
template <class Value>
class Guarded {
 public:
  explicit Guarded(int64_t count) : count_(static_cast<std::size_t>(count)) {
    bytes_.assign((count_ + 2 * kGuard) * sizeof(Value), '\xaa');
  }
  Value* data() { return reinterpret_cast<Value*>(bytes_.data()) + kGuard; }
  std::vector<Value> values() { return {data(), data() + count_}; }
  bool is_untouched() { return values_are(0, count_); }
  bool guards_hold() {
    return bytes_are(0, kGuard) && bytes_are(kGuard + count_, 2 * kGuard + count_);
  }

 private:
  static constexpr std::size_t kGuard = 16;
  bool values_are(std::size_t begin, std::size_t end) {
    return bytes_are(kGuard + begin, kGuard + end);
  }
  bool bytes_are(std::size_t begin, std::size_t end) {
    for (std::size_t i = begin * sizeof(Value); i < end * sizeof(Value); ++i) {
      if (bytes_[i] != '\xaa') return false;
    }
    return true;
  }
  std::size_t count_;
  std::vector<char> bytes_;
};

// A plan with memory for all that a step writes.
struct Step {
  Step(const Machine& machine_of, std::shared_ptr<Index> index_of, const Config& config,
       std::vector<int32_t> sequences, int32_t query_heads)
      : machine(machine_of), index(std::move(index_of)) {
    pkv_plan_desc desc{};
    desc.batch = static_cast<int32_t>(sequences.size());
    desc.query_heads = query_heads;
    desc.sequences = sequences.data();
    plan = value_of(Plan::create(index, config, desc));
    const pkv_geometry& g = index->geometry();
    const int64_t b = plan->batch();
    const int64_t rows = b * g.kv_heads;
    const int64_t k = plan->options().k;
    const int64_t c = plan->candidates();
    positions.emplace(rows * k);
    scores.emplace(rows * k);
    counts.emplace(rows);
    candidates.emplace(rows * c);
    candidate_counts.emplace(rows);
    estimates.emplace(b * query_heads * c);
    rest_lse.emplace(b * query_heads);
    sample_estimates.emplace(b * query_heads * plan->options().tail_samples);
    lse.emplace(b * query_heads);
    row_keys.emplace(std::initializer_list<int64_t>{b, g.kv_heads, k, g.head_dim}, kNan);
    row_values.emplace(std::initializer_list<int64_t>{b, g.kv_heads, k, g.value_dim}, kNan);
    output.emplace(std::initializer_list<int64_t>{b, query_heads, g.value_dim}, kNan);
    hits.positions = positions->data();
    hits.scores = scores->data();
    hits.counts = counts->data();
    hits.candidates = candidates->data();
    hits.candidate_counts = candidate_counts->data();
    hits.estimates = estimates->data();
    hits.rest_lse = rest_lse->data();
    hits.sample_estimates = sample_estimates->data();
    scratch.resize(static_cast<std::size_t>(plan->scratch_bytes()) + 512, '\xff');
  }
  void* scratch_memory() {
    const auto address = reinterpret_cast<uintptr_t>(scratch.data());
    return scratch.data() + (256 - address % 256) % 256;
  }
  absl::Status retrieve(Array& query) {
    return pkv::retrieve(*plan, machine.stream, query.tensor(), scratch_memory(), hits);
  }
  absl::Status fetch(Zone& zone) {
    pkv_rows source{}, rows{};
    source.keys = zone.keys.tensor();
    rows.keys = row_keys->tensor();
    if (index->geometry().v_source == PKV_V_SOURCE_OWN) {
      source.values = zone.values.tensor();
      rows.values = row_values->tensor();
    }
    return pkv::fetch(*plan, machine.stream, source, hits, rows);
  }
  // Fetched rows and tail, and `dense` if given.
  absl::Status attend(Array& query, const std::vector<pkv_dense>& dense = {},
                      bool has_hits = true) {
    pkv_attention attention{};
    attention.query = query.tensor();
    attention.output = output->tensor();
    attention.lse = lse->data();
    attention.scratch = scratch_memory();
    attention.dense_count = static_cast<int32_t>(dense.size());
    std::copy(dense.begin(), dense.end(), attention.dense);
    if (has_hits && plan->options().k > 0) {
      attention.rows.keys = row_keys->tensor();
      if (index->geometry().v_source == PKV_V_SOURCE_OWN) {
        attention.rows.values = row_values->tensor();
      }
    }
    return pkv::attend(*plan, machine.stream, attention, has_hits ? &hits : nullptr);
  }
  // The whole step in one call, `wanted` being what it leaves of the hits.
  pkv_step step_of(Array& query, Zone& zone, const std::vector<pkv_dense>& dense = {}) {
    pkv_step step{};
    step.query = query.tensor();
    step.output = output->tensor();
    step.lse = lse->data();
    step.scratch = scratch_memory();
    step.dense_count = static_cast<int32_t>(dense.size());
    std::copy(dense.begin(), dense.end(), step.dense);
    if (plan->options().k > 0) {
      step.source.keys = zone.keys.tensor();
      if (index->geometry().v_source == PKV_V_SOURCE_OWN) step.source.values = zone.values.tensor();
    }
    return step;
  }
  absl::Status run(const pkv_step& step, const pkv_hits& wanted = {}) {
    return pkv::step(*plan, machine.stream, step, nullptr, wanted);
  }
  bool guards_hold() {
    return positions->guards_hold() && scores->guards_hold() && counts->guards_hold() &&
           candidates->guards_hold() && candidate_counts->guards_hold() &&
           estimates->guards_hold() && rest_lse->guards_hold() && sample_estimates->guards_hold() &&
           lse->guards_hold();
  }

  const Machine& machine;
  std::shared_ptr<Index> index;
  std::unique_ptr<Plan> plan;
  pkv_hits hits{};
  std::optional<Guarded<int32_t>> positions, counts, candidates, candidate_counts;
  std::optional<Guarded<float>> scores, estimates, rest_lse, sample_estimates, lse;
  std::optional<Array> row_keys, row_values, output;
  std::vector<char> scratch;
};

template <class Value>
std::vector<Value> part_of(const std::vector<Value>& all, std::size_t part, std::size_t parts) {
  const std::size_t size = all.size() / parts;
  return {all.begin() + static_cast<std::ptrdiff_t>(part * size),
          all.begin() + static_cast<std::ptrdiff_t>((part + 1) * size)};
}

}  // namespace pkv::test
