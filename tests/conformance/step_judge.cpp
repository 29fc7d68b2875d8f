#include "tests/conformance/step_judge.h"

#include "fmt/core.h"
#include "tests/conformance/attend_judge.h"
#include "tests/conformance/attend_world.h"
#include "tests/conformance/failure.h"
#include "tests/conformance/rerank_judge.h"
#include "tests/conformance/vote_stage.h"

namespace pkv::conformance {
namespace {

StepOptions step_options(const StepCaseOptions& options) {
  StepOptions step = options.step;
  step.set.emplace_back("rank", options.rank == PKV_RANK_MEAN ? "mean" : "group");
  step.set.emplace_back("candidates", fmt::format("{}", static_cast<double>(options.ppm) * 1e-6));
  if (options.vote_group == PKV_VOTE_GROUP_HEADS) step.set.emplace_back("vote_group", "heads");
  if (options.soft_cap != 0.0F) {
    step.set.emplace_back("soft_cap", fmt::format("{}", options.soft_cap));
  }
  if (options.share > 0.0) {
    step.set.emplace_back("share", fmt::format("{}", options.share));
    step.set.emplace_back("k_min", fmt::format("{}", options.k_min));
  }
  return step;
}

RerankInput rerank_of(const World& world, const StepCaseOptions& options) {
  RerankInput input = rerank_input(world);
  input.rank = options.rank;
  input.k = options.step.k;
  input.k_min = options.k_min;
  input.soft_cap = options.soft_cap;
  input.share = options.share;
  input.weigh_norms = world.setup().value_norm;
  input.tail_samples = options.step.tail_samples;
  input.wants_estimates = input.wants_rest = options.step.tail != PKV_TAIL_DROP;
  input.wants_samples = reads_samples(options.step.tail);
  return input;
}

// What rerank is given: the reference's candidates.
RerankInput expected_rerank(const Bench& bench, const World& world, const StepCaseOptions& options,
                            float scale) {
  VoteInput vote = vote_input(world);
  vote.vote_group = options.vote_group;
  const Votes votes = bench.expected([&](const Place& place, uint8_t fill) {
    return run_vote(place, fill, world.codec(), world.zone(), vote);
  });
  const SelectInput select = select_input(votes.votes, world.batch().lengths, world.setup().h,
                                          share_rule(options.ppm, options.step.k));
  const Candidates chosen = bench.expected(
      [&](const Place& place, uint8_t fill) { return run_select(place, fill, select); });
  RerankInput rerank = rerank_of(world, options);
  rerank.scale = scale;
  rerank.candidates_stride = select.candidates_stride;
  for (size_t r = 0; r < chosen.counts.size(); ++r) {
    rerank.candidates.push_back(chosen.candidates[r]);
    rerank.candidates.back().resize(static_cast<size_t>(chosen.counts[r]));
  }
  return rerank;
}

FetchInput source_of(const World& world) {
  FetchInput input;
  input.keys = lay_out(world.keys(), world.setup().layout);
  if (world.setup().v_source == PKV_V_SOURCE_OWN) {
    input.values = lay_out(*world.values(), world.setup().layout);
  }
  input.batch = world.batch();
  input.heads = world.setup().h;
  return input;
}

// One step of one world, its parts one by one and as a whole.
class StepCase {
 public:
  StepCase(const Bench& bench, const Setup& setup, const StepCaseOptions& options,
           const std::string& name)
      : bench_(bench),
        options_(options),
        world_(bench, setup, name),
        scale_(rerank_input(world_).scale),
        step_(bench.subject(), world_, step_options(options), scale_),
        rerank_(expected_rerank(bench, world_, options, scale_)),
        expected_hits_(expected_hits(bench, world_.codec(), world_.zone(), rerank_)),
        source_(source_of(world_)) {
    Random random = bench.random(name + "/parts");
    AttendOptions dense;
    dense.tail = options.step.tail;
    dense.tail_samples = options.step.tail_samples;
    dense.parts = options.parts;
    dense.soft_cap = options.soft_cap;
    dense.has_sinks = options.has_sinks;
    attend_ = attend_input(bench, world_, dense, random);
    attend_.k = options.step.k;
    attend_.candidates_stride = step_.candidates_stride();
  }

  void check_index() const {
    const std::vector<Records> records = step_.records();
    for (size_t r = 0; r < records.size(); ++r) {
      expect_bits(fmt::format("index row {}", r), world_.zone().rows[r], records[r]);
    }
  }

  void check_parts() {
    const Retrieved got = bench_.result([&](const Place&, uint8_t f) { return step_.retrieve(f); });
    judge(got);
    take(got);
    if (attend_.k > 0) {
      const FetchInput input = fetch_input(got);
      const Fetched rows =
          bench_.result([&](const Place&, uint8_t fill) { return step_.fetch(fill, input); });
      expect_same(expected_rows(input), rows, "fetch");
    }
    judge(bench_.result([&](const Place&, uint8_t fill) { return step_.attend(fill, attend_); }));
  }

  // pkv_step_run, hits wanted and not. Its attention is judged given the hits that it found; those
  // of the call that shows none are the same. Then with K and V in host memory: the same hits.
  void check_whole() {
    const Whole shown = bench_.result(
        [&](const Place&, uint8_t fill) { return step_.run(fill, source_, attend_, true); });
    judge(shown.retrieved);
    take(shown.retrieved);
    judge(shown.attention);
    const Whole silent = bench_.result(
        [&](const Place&, uint8_t fill) { return step_.run(fill, source_, attend_, false); });
    judge(silent.attention);
    const Whole offloaded = bench_.result([&](const Place&, uint8_t fill) {
      return step_.run(fill, source_, attend_, true, PKV_ALLOC_HOST);
    });
    judge(offloaded.retrieved);
    expect_bits("positions with rows in host memory", shown.retrieved.hits.positions,
                offloaded.retrieved.hits.positions);
    judge(offloaded.attention);
  }

  void check_host_rows() {
    for (const HostRows rows : {HostRows::kApart, HostRows::kSideBySide, HostRows::kTokenMajor}) {
      step_.refill_from_host(world_, rows);
      check_index();
    }
  }

  // `other`: the same shape with other numbers. What is found in a cache changes no bit of what an
  // empty one gives; without a cache another kernel may serve the step.
  void check_row_cache(const StepCase& other) {
    Whole first;
    for (const int32_t rows : {8, 64, 4096}) {
      step_.keep_rows(rows);
      first = run_cached(*this, *this);
      judge(first.retrieved);
      take(first.retrieved);
      judge(first.attention);
      for (int turn = 1; turn < 3; ++turn) {
        expect_same(first, run_cached(*this, *this),
                    fmt::format("row cache, {} rows, turn {}", rows, turn));
      }
    }
    expect_found();
    // In one cache: queries by turns, then other tokens.
    step_.keep_rows(4096);
    const Whole others = run_cached(*this, other);
    for (int turn = 0; turn < 2; ++turn) {
      const std::string what = fmt::format("row cache, queries by turns, turn {}", turn);
      expect_same(first, run_cached(*this, *this), what);
      expect_same(others, run_cached(*this, other), what);
    }
    step_.refill(other.world_);
    const Whole refilled = run_cached(other, other);
    expect_same(refilled, run_cached(other, other), "row cache, after a reset");
    step_.keep_rows(4096);
    expect_same(run_cached(other, other), refilled, "row cache, a reset against an empty one");
  }

 private:
  // Candidates exactly, hits by their class.
  void judge(const Retrieved& got) const {
    expect_bits("candidates", rerank_.candidates, got.candidates);
    judge_hits(world_.codec(), world_.zone(), rerank_, expected_hits_, got.hits);
  }

  void judge(const Attention& got) const {
    const Attention expected = bench_.expected([&](const Place& place, uint8_t fill) {
      return run_attend(place, fill, world_.codec(), world_.zone(), attend_);
    });
    judge_attention(world_.codec(), world_.zone(), attend_, expected, got);
  }

  // That the rows of equal steps were found, where the backend has a use for a cache: of three
  // steps two, but for entries that share a sequence. Lines come in sets, so a step that wants a
  // good part of them finds some sets full: then nearly all.
  void expect_found() const {
    const pkv_row_cache_stats stats = step_.row_cache_stats();
    if (stats.rows == 0) return;
    const int64_t all = 2 * stats.looked_up;
    const int64_t least = 16 * int64_t{attend_.k} <= stats.rows ? all : all - all / 20;
    if (3 * stats.found <= all && 3 * stats.found >= least) return;
    throw Failure(fmt::format("row cache: found {} of {} rows in three equal steps", stats.found,
                              stats.looked_up));
  }

  Whole run_cached(const StepCase& tokens, const StepCase& queries) {
    return step_.run(kFills[1], tokens.source_, queries.attend_, true);
  }

  FetchInput fetch_input(const Retrieved& retrieved) const {
    FetchInput input = source_;
    input.k = attend_.k;
    for (const auto& row : retrieved.hits.positions) {
      input.positions.insert(input.positions.end(), row.begin(), row.end());
    }
    return input;
  }

  Fetched expected_rows(const FetchInput& input) const {
    return bench_.expected(
        [&](const Place& place, uint8_t fill) { return run_fetch(place, fill, input); });
  }

  // The input of attend becomes what was retrieved, and its rows.
  void take(const Retrieved& retrieved) {
    attend_.positions = retrieved.hits.positions;
    attend_.counts = retrieved.hits.counts;
    attend_.candidates = retrieved.candidates;
    attend_.estimates = retrieved.hits.estimates;
    attend_.rest_lse = retrieved.hits.rest_lse;
    attend_.sample_estimates = retrieved.hits.sample_estimates;
    if (attend_.k == 0) return;
    const Fetched rows = expected_rows(fetch_input(retrieved));
    PartInput part;
    part.keys = lay_out(rows.keys, world_.setup().layout);
    if (world_.setup().v_source == PKV_V_SOURCE_OWN) {
      part.values = lay_out(rows.values, world_.setup().layout);
    }
    attend_.rows = part;
  }

  const Bench& bench_;
  const StepCaseOptions& options_;
  World world_;
  float scale_;
  Step step_;
  RerankInput rerank_;
  ExpectedHits expected_hits_;
  FetchInput source_;
  AttendInput attend_;
};

}  // namespace

void judge_step(const Bench& bench, const Setup& setup, const StepCaseOptions& options,
                const std::string& name) {
  StepCase step(bench, setup, options, name);
  step.check_index();
  step.check_parts();
  step.check_whole();
}

void judge_host_rows(const Bench& bench, const Setup& setup, const StepCaseOptions& options,
                     const std::string& name) {
  StepCase(bench, setup, options, name).check_host_rows();
}

void judge_row_cache(const Bench& bench, const Setup& setup, const StepCaseOptions& options,
                     const std::string& name) {
  StepCase step(bench, setup, options, name);
  step.check_row_cache(StepCase(bench, setup, options, name + "/other"));
}

}  // namespace pkv::conformance
