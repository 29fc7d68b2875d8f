#include "tests/model/judge.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <set>

#include "fmt/core.h"
#include "tests/model/oracle.h"

namespace pkv::cache_model {
namespace {

template <class... Args>
[[noreturn]] void fail(fmt::format_string<Args...> text, Args&&... args) {
  throw Mismatch(fmt::format(text, std::forward<Args>(args)...));
}

void expect_equal(const char* what, int64_t layer, int64_t sequence, int64_t found,
                  int64_t expected) {
  if (found == expected) return;
  fail("{} of layer {}, sequence {}: {}, expected {}", what, layer, sequence, found, expected);
}

// min(n, max(k, ceil(n * ppm / 10^6))), docs/algorithm.md, section 5.
int64_t candidates_of(const World& world, int64_t n) {
  const std::string text = world.shape().option("candidates", "auto");
  // Zones here stay below 32,768.
  int64_t ppm = world.shape().profile == "paper" || n < 16384 ? 100000 : 50000;
  if (text != "auto") ppm = std::max<int64_t>(1, std::llrint(std::stod(text) * 1e6));
  const int64_t share = (n * ppm + 999999) / 1000000;
  return std::min(n, std::max<int64_t>(world.k(), share));
}

bool has_fixed_count(const World& world) { return world.shape().option("share", "0") == "0"; }

// The hits of query token `row` of a call are those of the index's own call for it.
void judge_hits(const World& world, int32_t layer, int32_t sequence, const Found& found,
                int64_t row, const Found& expected) {
  const Shape& shape = world.shape();
  const auto fail_at = [&](const char* what, int64_t head, int64_t i, double is, double wanted) {
    fail("{} {} of layer {}, sequence {}, query token {}, head {}: {}, expected {}", what, i, layer,
         sequence, row, head, is, wanted);
  };
  const bool is_scalar =
      shape.option("codec", shape.profile == "paper" ? "polar4" : "scalar4") != "polar4";
  for (int32_t h = 0; h < shape.kv_heads; ++h) {
    const auto at = static_cast<std::size_t>(row * shape.kv_heads + h);
    const auto head = static_cast<std::size_t>(h);
    const int32_t candidates = expected.candidate_counts[head];
    if (found.candidate_counts[at] != candidates) {
      fail_at("candidate_counts", h, 0, found.candidate_counts[at], candidates);
    }
    for (int64_t c = 0; c < found.stride; ++c) {
      const auto i = static_cast<std::size_t>(c);
      const int32_t is = found.candidates[at * static_cast<std::size_t>(found.stride) + i];
      const int32_t wanted =
          c < candidates ? expected.candidates[head * static_cast<std::size_t>(expected.stride) + i]
                         : -1;
      if (is != wanted) fail_at("candidates", h, c, is, wanted);
    }
    if (shape.soft_cap > 0) continue;  // the index knows no cap, which scores obey
    if (found.counts[at] != expected.counts[head]) {
      fail_at("counts", h, 0, found.counts[at], expected.counts[head]);
    }
    const auto k = static_cast<std::size_t>(world.k());
    for (std::size_t i = 0; i < k; ++i) {
      const int32_t is = found.positions[at * k + i];
      const int32_t wanted = expected.positions[head * k + i];
      if (is != wanted) fail_at("positions", h, static_cast<int64_t>(i), is, wanted);
      const float score = found.scores[at * k + i];
      const float expected_score = expected.scores[head * k + i];
      // Bounded (docs/numerics.md, 3): 2 (4 X + 1024 + 8) u with X below 100 here.
      const bool is_near =
          score == expected_score || std::fabs(score - expected_score) <= 2 * 1432 * 0x1p-24F;
      if (!is_near) fail_at("scores", h, static_cast<int64_t>(i), score, expected_score);
    }
    for (int32_t g = 0; g < shape.group(); ++g) {
      const auto q = static_cast<std::size_t>(h * shape.group() + g);
      const auto q_at = static_cast<std::size_t>(row * shape.query_heads) + q;
      for (int32_t c = 0; c < candidates; ++c) {
        const auto i = static_cast<std::size_t>(c);
        const float is = found.estimates[q_at * static_cast<std::size_t>(found.stride) + i];
        const float wanted = expected.estimates[q * static_cast<std::size_t>(expected.stride) + i];
        const float bound = is_scalar ? 0.0F : 1e-4F * (1 + std::fabs(wanted));
        if (!(std::fabs(is - wanted) <= bound)) fail_at("estimates", q, c, is, wanted);
      }
    }
  }
}

void judge_no_hits(const World& world, int32_t layer, int32_t sequence, const Found& found,
                   int64_t row) {
  for (int32_t h = 0; h < world.shape().kv_heads; ++h) {
    const auto at = static_cast<std::size_t>(row * world.shape().kv_heads + h);
    expect_equal("counts without an encoded zone", layer, sequence, found.counts[at], 0);
    for (std::size_t i = 0; i < static_cast<std::size_t>(world.k()); ++i) {
      expect_equal("positions without an encoded zone", layer, sequence,
                   found.positions[at * static_cast<std::size_t>(world.k()) + i], -1);
    }
  }
}

double roundoff_of(pkv_dtype dtype) {
  if (dtype == PKV_DTYPE_F32) return 0x1p-24;
  return dtype == PKV_DTYPE_F16 ? 0x1p-11 : 0x1p-8;
}

// Output and lse of query token `row`, within `times` the tolerance.
template <class Numbers>
void judge_output(const World& world, int32_t layer, int32_t sequence, const Attended& attended,
                  int64_t row, const Numbers& output, const Numbers& lse, const Exact& bounds,
                  double times) {
  const Shape& shape = world.shape();
  const auto dv = static_cast<std::size_t>(shape.value_dim);
  for (std::size_t head = 0; head < static_cast<std::size_t>(shape.query_heads); ++head) {
    const std::size_t at = static_cast<std::size_t>(row * shape.query_heads) + head;
    const auto differs = [](double a, double b, double bound) {
      return a != b && !(std::fabs(a - b) <= bound);  // equal infinities do not differ
    };
    if (differs(attended.lse[at], lse[head], times * bounds.lse_tolerance[head])) {
      fail("lse of layer {}, sequence {}, query token {}, head {}: {}, expected {} +- {}", layer,
           sequence, row, head, attended.lse[at], lse[head], times * bounds.lse_tolerance[head]);
    }
    for (std::size_t j = 0; j < dv; ++j) {
      const double is = attended.output[at * dv + j], wanted = output[head * dv + j];
      const double bound = times * (bounds.output_tolerance[head] +
                                    roundoff_of(shape.output_dtype) * std::fabs(wanted));
      if (!differs(is, wanted, bound)) continue;
      fail(
          "output of layer {}, sequence {}, query token {}, head {}, coordinate {}: {}, expected "
          "{} +- {}",
          layer, sequence, row, head, j, is, wanted, bound);
    }
  }
}

std::vector<int64_t> range(int64_t begin, int64_t end) {
  std::vector<int64_t> out;
  for (int64_t i = begin; i < end; ++i) out.push_back(i);
  return out;
}

// Positions of the zone that each KV head fetched, in the sequence.
std::vector<std::vector<int64_t>> fetched_rows(const World& world, const Found& found,
                                               int64_t row) {
  std::vector<std::vector<int64_t>> rows;
  for (int32_t h = 0; h < world.shape().kv_heads; ++h) {
    const auto at = static_cast<std::size_t>(row * world.shape().kv_heads + h);
    rows.emplace_back();
    for (int32_t i = 0; i < found.counts[at]; ++i) {
      rows.back().push_back(
          world.shape().sink +
          found.positions[at * static_cast<std::size_t>(world.k()) + static_cast<std::size_t>(i)]);
    }
  }
  return rows;
}

// One query token that sees `tokens` tokens of the sequence.
void judge_token(const World& world, const Naive& naive, int32_t layer, int32_t sequence,
                 uint64_t query, int64_t tokens, uint32_t flags, const Attended& attended,
                 int64_t row, const std::optional<ZoneIndex>& zone) {
  const Shape& shape = world.shape();
  const NaiveLayer& state = naive.layer(layer, sequence);
  const Shape::Policy policy = shape.policy(layer);
  const bool has_window = policy.attention == PKV_CACHE_WINDOW;
  const int64_t first = has_window ? std::max<int64_t>(0, tokens - policy.window) : 0;
  if (!zone.has_value() || (flags & PKV_CACHE_EXACT) != 0) {
    const Exact exact = attend_exactly(world, state, layer, query, range(first, tokens));
    judge_output(world, layer, sequence, attended, row, exact.output, exact.lse, exact, 1);
    if (flags == 0 && shape.is_sparse(layer)) {
      judge_no_hits(world, layer, sequence, attended.found, row);
    }
    return;
  }
  const Attended expected = zone->step(query, tokens);
  const bool is_by_plan = !expected.output.empty();
  if (is_by_plan) {
    judge_hits(world, layer, sequence, attended.found, row, expected.found);
    // Cache and plan each may err, and the weight of the samples errs by four times as much.
    const Exact bounds = attend_exactly(world, state, layer, query, range(0, tokens));
    judge_output(world, layer, sequence, attended, row, expected.output, expected.lse, bounds, 6);
    return;
  }
  std::vector<int64_t> dense = range(0, shape.sink);
  for (const int64_t i : range(shape.sink + state.zone, tokens)) dense.push_back(i);
  const Exact exact =
      attend_exactly(world, state, layer, query, dense, fetched_rows(world, attended.found, row));
  judge_output(world, layer, sequence, attended, row, exact.output, exact.lse, exact, 1);
}

bool has_records(const Naive& naive, int32_t layer, const Part& part, uint32_t flags) {
  return flags == 0 && naive.is_encoded(layer, part.sequence);
}

// The last query tokens of a sequence, from row `row` of what was attended on.
void judge_part(const World& world, const Naive& naive, int32_t layer, const Part& part,
                uint32_t flags, const Attended& attended, int64_t row,
                const std::optional<ZoneIndex>& zone) {
  const auto count = static_cast<int64_t>(part.tokens.size());
  const int64_t tokens = naive.layer(layer, part.sequence).tokens();
  for (int64_t t = 0; t < count; ++t) {
    judge_token(world, naive, layer, part.sequence, part.tokens[static_cast<std::size_t>(t)],
                tokens - count + t + 1, flags, attended, row + t, zone);
  }
}

void judge_codec(World& world, const ZoneIndex& zone, int32_t layer, int32_t sequence) {
  pkv_codec* handle = nullptr;
  check(pkv_cache_codec(world.cache(), layer, sequence, &handle));
  const Codec codec(handle);
  const pkv_codec_data is = codec.data(), wanted = zone.codec().data();
  const auto compare = [&](const char* what, const float* a, const float* b, int32_t width) {
    if ((a == nullptr) != (b == nullptr)) fail("{} is there in only one codec", what);
    if (a == nullptr) return;
    for (int32_t i = 0; i < world.shape().kv_heads * width; ++i) {
      if (std::memcmp(a + i, b + i, sizeof(float)) == 0) continue;
      fail("{}[{}] of layer {}, sequence {}: {}, expected {}", what, i, layer, sequence, a[i],
           b[i]);
    }
  };
  compare("center", is.center, wanted.center, world.shape().head_dim);
  compare("balance", is.balance, wanted.balance, world.shape().head_dim);
  compare("value_center", is.value_center, wanted.value_center, world.shape().value_dim);
}

// Records, and the sums over them: integers and multiples of 1/64, so exact in any order.
void judge_records(World& world, const Naive& naive, const ZoneIndex& zone, int32_t layer,
                   int32_t sequence) {
  const Shape& shape = world.shape();
  const NaiveLayer& state = naive.layer(layer, sequence);
  const bool is_tier = zone.codec().geometry().vote == PKV_VOTE_TIER;
  const std::size_t h = static_cast<std::size_t>(shape.kv_heads);
  const std::size_t dv = shape.attends() ? static_cast<std::size_t>(shape.value_dim) : 0;
  const std::size_t subspaces = static_cast<std::size_t>(shape.head_dim / 8);
  std::vector<double> sums(h * dv);
  std::vector<int64_t> good(h);
  std::vector<int32_t> occupancy(is_tier ? h * subspaces * 256 : 0);
  check(pkv_cache_sums_sync(world.cache(), world.stream(), layer, sequence,
                            sums.empty() ? nullptr : sums.data(), good.data(),
                            occupancy.empty() ? nullptr : occupancy.data()));
  for (int32_t head = 0; head < shape.kv_heads; ++head) {
    const Planes expected = zone.records(head);
    if (world.records_of(layer, sequence, head, 0, state.zone) != expected.bytes()) {
      fail("records of layer {}, sequence {}, head {} are not those of the zone", layer, sequence,
           head);
    }
    const auto at = static_cast<std::size_t>(head);
    expect_equal("good_counts", layer, sequence, good[at], state.zone);
    std::vector<double> sum(dv);
    std::vector<float> value(dv);
    std::vector<std::byte> room;
    for (int64_t i = 0; i < state.zone && dv > 0; ++i) {
      const uint64_t token = state.entries[static_cast<std::size_t>(shape.sink + i)].token;
      const Content::Rows rows = world.content().rows(token, layer, room);
      const std::byte* row = shape.has_own_values()
                                 ? rows.values + at * world.content().value_bytes()
                                 : rows.keys + at * world.content().key_bytes();
      read_numbers(shape.dtype, row, dv, value.data());
      for (std::size_t j = 0; j < dv; ++j) sum[j] += static_cast<double>(value[j]);
    }
    for (std::size_t j = 0; j < dv; ++j) {
      if (sums[at * dv + j] == sum[j]) continue;
      fail("value_sums of layer {}, sequence {}, head {}, coordinate {}: {}, expected {}", layer,
           sequence, head, j, sums[at * dv + j], sum[j]);
    }
    if (!is_tier) continue;
    std::vector<int32_t> patterns(subspaces * 256);
    for (std::size_t i = 0; i < expected.signs().size(); ++i) {
      ++patterns[i % subspaces * 256 + expected.signs()[i]];
    }
    for (std::size_t p = 0; p < patterns.size(); ++p) {
      expect_equal("occupancy", layer, sequence, occupancy[at * patterns.size() + p], patterns[p]);
    }
  }
}

}  // namespace

void judge_use(const World& world, const Naive& naive) {
  for (int32_t s = 0; s < world.shape().sequences; ++s) {
    int64_t tokens = 0;
    const pkv_status status = pkv_cache_length(world.cache(), 0, s, &tokens);
    const pkv_status expected = naive.in_use(s) ? PKV_OK : PKV_FAILED_PRECONDITION;
    if (status != expected) {
      fail("length of sequence {}: {}, expected {}", s, pkv_status_name(status),
           pkv_status_name(expected));
    }
  }
}

void judge_regions(const World& world, const Naive& naive, int32_t sequence) {
  for (int32_t layer = 0; layer < world.shape().layers; ++layer) {
    const pkv_cache_regions is = world.regions(layer, sequence);
    const pkv_cache_regions wanted = naive.regions(layer, sequence);
    expect_equal("length", layer, sequence, world.length(layer, sequence), wanted.tokens);
    expect_equal("tokens", layer, sequence, is.tokens, wanted.tokens);
    expect_equal("sink", layer, sequence, is.sink, wanted.sink);
    expect_equal("zone", layer, sequence, is.zone, wanted.zone);
    expect_equal("tail", layer, sequence, is.tail, wanted.tail);
    expect_equal("is_encoded", layer, sequence, is.is_encoded, wanted.is_encoded);
    expect_equal("fit_length", layer, sequence, is.fit_length, wanted.fit_length);
    expect_equal("next_fit", layer, sequence, is.next_fit, wanted.next_fit);
    expect_equal("fits", layer, sequence, is.fits, wanted.fits);
  }
}

void judge_rows(World& world, const Naive& naive, int32_t layer, int32_t sequence, int64_t begin,
                int64_t count) {
  const Shape& shape = world.shape();
  const std::vector<uint64_t> tokens = naive.layer(layer, sequence).slice(begin, count);
  const Tensor keys(shape.dtype, {shape.kv_heads, count, shape.head_dim});
  const Tensor values(shape.dtype, {shape.kv_heads, count, shape.value_dim});
  auto rows = filled<pkv_rows, pkv_rows_init>();
  rows.keys = keys.host_view();
  rows.values = shape.has_own_values() ? values.host_view() : no_tensor();
  check(pkv_cache_rows_sync(world.cache(), world.stream(), layer, sequence, begin, count, &rows));
  if (keys.bytes() != world.content().head_keys(tokens, layer).bytes()) {
    fail("keys of layer {}, sequence {}, positions {} to {} are not those appended", layer,
         sequence, begin, begin + count);
  }
  if (shape.has_own_values() &&
      values.bytes() != world.content().head_values(tokens, layer).bytes()) {
    fail("values of layer {}, sequence {}, positions {} to {} are not those appended", layer,
         sequence, begin, begin + count);
  }
}

void judge_fetch(World& world, const Naive& naive, int32_t layer, const Parts& parts) {
  const Shape& shape = world.shape();
  Found found;
  check(world.retrieve(layer, parts, found));
  Tensor keys(shape.dtype, {0}), values(shape.dtype, {0});
  check(world.fetch(layer, parts, found, keys, values));
  const auto k = static_cast<std::size_t>(world.k());
  const std::size_t key_bytes = world.content().key_bytes();
  const std::size_t value_bytes = world.content().value_bytes();
  const std::vector<std::byte> zeros(std::max(key_bytes, value_bytes));
  std::vector<std::byte> room;
  std::size_t row = 0;
  for (const Part& part : parts) {
    const NaiveLayer& state = naive.layer(layer, part.sequence);
    const int64_t n = naive.is_encoded(layer, part.sequence) ? state.zone : 0;
    const int64_t candidates = candidates_of(world, n);
    for (std::size_t t = 0; t < part.tokens.size(); ++t) {
      for (int32_t h = 0; h < shape.kv_heads; ++h, ++row) {
        expect_equal("candidate_counts", layer, part.sequence, found.candidate_counts[row],
                     candidates);
        const int64_t count = std::min<int64_t>(world.k(), candidates);
        if (has_fixed_count(world)) {
          expect_equal("counts", layer, part.sequence, found.counts[row], count);
        } else if (found.counts[row] < 0 || found.counts[row] > count) {
          expect_equal("counts", layer, part.sequence, found.counts[row], count);
        }
        std::set<int32_t> seen;
        for (std::size_t i = 0; i < k; ++i) {
          const int32_t position = found.positions[row * k + i];
          const bool is_used = static_cast<int32_t>(i) < found.counts[row];
          const std::byte* key = zeros.data();
          const std::byte* value = zeros.data();
          if (is_used) {
            if (position < 0 || position >= n || !seen.insert(position).second) {
              fail("position {} of layer {}, sequence {} is outside 0..{} or there twice", position,
                   layer, part.sequence, n - 1);
            }
            const uint64_t token =
                state.entries[static_cast<std::size_t>(shape.sink + position)].token;
            const Content::Rows of = world.content().rows(token, layer, room);
            key = of.keys + static_cast<std::size_t>(h) * key_bytes;
            value = of.values + static_cast<std::size_t>(h) * value_bytes;
          } else {
            expect_equal("unused position", layer, part.sequence, position, -1);
          }
          const auto is_row = [&](const Tensor& rows, const std::byte* wanted, std::size_t bytes) {
            return std::memcmp(rows.bytes().data() + (row * k + i) * bytes, wanted, bytes) == 0;
          };
          if (!is_row(keys, key, key_bytes)) {
            fail("fetched key {} at position {} of layer {}, sequence {}", i, position, layer,
                 part.sequence);
          }
          if (shape.has_own_values() && !is_row(values, value, value_bytes)) {
            fail("fetched value {} at position {} of layer {}, sequence {}", i, position, layer,
                 part.sequence);
          }
        }
      }
    }
  }
}

void judge_step(World& world, const Naive& naive, int32_t layer, const Parts& parts, uint32_t flags,
                const Attended& attended) {
  int64_t row = 0;
  for (const Part& part : parts) {
    std::optional<ZoneIndex> zone;
    if (has_records(naive, layer, part, flags)) zone.emplace(world, naive, layer, part.sequence);
    judge_part(world, naive, layer, part, flags, attended, row, zone);
    row += static_cast<int64_t>(part.tokens.size());
  }
}

void judge_answers(World& world, const Naive& naive, int32_t layer, int32_t sequence,
                   const std::vector<uint64_t>& queries) {
  Found found;
  if (world.shape().is_sparse(layer)) {
    check(world.retrieve(layer, {{sequence, queries}}, found));
  }
  const int64_t tokens = naive.layer(layer, sequence).tokens();
  std::optional<ZoneIndex> zone;
  if (naive.is_encoded(layer, sequence)) {
    zone.emplace(world, naive, layer, sequence);
    judge_codec(world, *zone, layer, sequence);
    judge_records(world, naive, *zone, layer, sequence);
    for (std::size_t t = 0; t < queries.size(); ++t) {
      judge_hits(world, layer, sequence, found, static_cast<int64_t>(t),
                 zone->step(queries[t], tokens).found);
    }
  } else if (world.shape().is_sparse(layer)) {
    for (std::size_t t = 0; t < queries.size(); ++t) {
      judge_no_hits(world, layer, sequence, found, static_cast<int64_t>(t));
    }
  }
  if (!world.shape().attends()) return;
  const int64_t most = std::min(tokens, world.shape().local + 1);
  const auto count = std::min<std::size_t>(queries.size(), static_cast<std::size_t>(most));
  const Part part = {sequence, {queries.begin(), queries.begin() + static_cast<int64_t>(count)}};
  for (const uint32_t flags : {0U, static_cast<uint32_t>(PKV_CACHE_EXACT)}) {
    Attended attended;
    check(world.attend(layer, {part}, flags, attended));
    judge_part(world, naive, layer, part, flags, attended, 0, zone);
  }
}

}  // namespace pkv::cache_model
