#include "tests/conformance/attend_world.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "fmt/core.h"
#include "tests/conformance/half.h"
#include "tests/conformance/numbers.h"
#include "tests/conformance/vote_stage.h"

namespace pkv::conformance {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Elements of tokens from counts[r] on become NaN; rows r = b * h.
void poison(std::vector<float>& x, const std::vector<int64_t>& counts, int64_t tokens) {
  if (x.empty()) return;
  const int64_t width =
      static_cast<int64_t>(x.size()) / static_cast<int64_t>(counts.size()) / tokens;
  for (size_t r = 0; r < counts.size(); ++r) {
    const auto row = x.begin() + static_cast<int64_t>(r) * tokens * width;
    std::fill(row + counts[r] * width, row + tokens * width, kNan);
  }
}

PartInput make_part(const World& world, const AttendOptions& options, int64_t t, Random& random) {
  const Setup& s = world.setup();
  PartInput part;
  std::vector<int64_t> lengths;
  for (int32_t i = 0; i < s.b; ++i) {
    const int64_t choices[] = {t, t / 2, 0, t - 1, 1};
    lengths.push_back(options.has_lengths ? std::clamp<int64_t>(choices[i % 5], 0, t) : t);
  }
  std::vector<int64_t> rows;
  for (const int64_t length : lengths) rows.insert(rows.end(), static_cast<size_t>(s.h), length);
  const auto numbers = [&](const Shape& shape, auto make) {
    std::vector<float> x = make(random, "normal", shape, s.dtype);
    poison(x, rows, t);
    return lay_out(make_dense(s.dtype, shape, x), s.layout);
  };
  part.keys = numbers({s.b, s.h, t, s.d}, key_numbers);
  if (s.v_source == PKV_V_SOURCE_OWN) {
    part.values = numbers({s.b, s.h, t, world.codec().dv()}, value_numbers);
  }
  if (options.has_lengths) part.lengths = lengths;
  part.page_tokens = options.page_tokens;
  // Apart, since entries may name one sequence.
  for (int64_t i = 0; i < s.b && options.page_tokens != 0; ++i) {
    part.starts.push_back(i * (t + 3) + 1);
  }
  return part;
}

// Row `position` of each hit out of [sequences, h, n, width], NaN where there is none.
Tensor fetched(const World& world, const Dense& source, const Hits& hits, int32_t k) {
  const int64_t width = source.shape[3];
  const int64_t n = source.shape[2];
  std::vector<float> rows;
  for (size_t r = 0; r < hits.positions.size(); ++r) {
    const auto heads = static_cast<size_t>(world.setup().h);
    const auto sequence = static_cast<size_t>(world.batch().sequences[r / heads]);
    const auto first = static_cast<int64_t>(sequence * heads + r % heads) * n;
    for (const int32_t position : hits.positions[r]) {
      for (int64_t j = 0; j < width; ++j) {
        rows.push_back(position < 0 ? kNan : source.at((first + position) * width + j));
      }
    }
  }
  const Shape shape = {world.setup().b, world.setup().h, k, width};
  return lay_out(make_dense(source.dtype, shape, rows), world.setup().layout);
}

// The first outweighs most tokens, the last is none.
std::vector<float> make_sinks(int32_t heads, Random& random) {
  std::vector<float> sinks;
  for (int32_t head = 0; head < heads; ++head) sinks.push_back(2.0F * random.normal());
  sinks.front() = 6.0F;
  if (heads > 1) sinks.back() = -std::numeric_limits<float>::infinity();
  return sinks;
}

}  // namespace

std::string AttendOptions::text() const {
  const AttendOptions usual;
  std::string text;
  if (k != usual.k) text += fmt::format("_k{}", k);
  if (ppm != usual.ppm) text += fmt::format("_ppm{}", ppm);
  if (tail_samples != usual.tail_samples) text += fmt::format("_samples{}", tail_samples);
  text += "_t";
  for (size_t p = 0; p < parts.size(); ++p) text += fmt::format("{}{}", p > 0 ? "+" : "", parts[p]);
  if (parts.empty()) text += "none";
  if (!has_lengths) text += "_whole";
  if (output_dtype != usual.output_dtype) text += fmt::format("_to_{}", dtype_name(output_dtype));
  if (output_layout != usual.output_layout) {
    text += fmt::format("_to_{}", layout_name(output_layout));
  }
  if (!wants_lse) text += "_nolse";
  if (page_tokens != 0) text += fmt::format("_pages{}", page_tokens);
  if (soft_cap != 0.0F) text += fmt::format("_cap{}", soft_cap);
  if (has_sinks) text += "_sinks";
  return text;
}

void choose_candidates(const Bench& bench, const World& world, int64_t ppm, int32_t k,
                       RerankInput& input) {
  const VoteInput votes_in = vote_input(world);
  const Votes votes = bench.expected([&](const Place& place, uint8_t fill) {
    return run_vote(place, fill, world.codec(), world.zone(), votes_in);
  });
  const SelectInput select_in =
      select_input(votes.votes, world.batch().lengths, world.setup().h, share_rule(ppm, k));
  const Candidates chosen = bench.expected(
      [&](const Place& place, uint8_t fill) { return run_select(place, fill, select_in); });
  input.candidates_stride = select_in.candidates_stride;
  for (size_t r = 0; r < chosen.counts.size(); ++r) {
    input.candidates.push_back(chosen.candidates[r]);
    input.candidates.back().resize(static_cast<size_t>(chosen.counts[r]));
  }
}

AttendInput attend_input(const Bench& bench, const World& world, const AttendOptions& options,
                         Random& random) {
  const Setup& s = world.setup();
  AttendInput input;
  input.queries = world.query_tensor();
  input.batch = world.batch();
  input.query_heads = s.hq();
  input.tail = options.tail;
  input.output_dtype = options.output_dtype;
  input.output_layout = options.output_layout;
  input.wants_lse = options.wants_lse;
  input.soft_cap = options.soft_cap;
  if (options.has_sinks) input.sink_logits = make_sinks(s.hq(), random);
  for (const int64_t t : options.parts) input.parts.push_back(make_part(world, options, t, random));

  RerankInput rerank = rerank_input(world);
  input.scale = rerank.scale;
  rerank.k = options.k;
  rerank.tail_samples = options.tail_samples;
  rerank.soft_cap = options.soft_cap;
  rerank.wants_samples = reads_samples(options.tail);
  choose_candidates(bench, world, options.ppm, options.k, rerank);
  const Hits hits = bench.expected([&](const Place& place, uint8_t fill) {
    return run_rerank(place, fill, world.codec(), world.zone(), rerank);
  });
  input.k = options.k;
  input.positions = hits.positions;
  input.counts = hits.counts;
  if (options.k > 0) {
    PartInput rows;
    rows.keys = fetched(world, world.keys(), hits, options.k);
    if (s.v_source == PKV_V_SOURCE_OWN) {
      rows.values = fetched(world, *world.values(), hits, options.k);
    }
    input.rows = rows;
  }
  input.candidates = rerank.candidates;
  input.candidates_stride = rerank.candidates_stride;
  input.estimates = hits.estimates;
  input.rest_lse = hits.rest_lse;
  input.tail_samples = options.tail_samples;
  input.sample_estimates = hits.sample_estimates;
  return input;
}

}  // namespace pkv::conformance
