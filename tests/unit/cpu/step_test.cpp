// Stages rerank and attend of backend cpu against cpu_ref, and its fused step against its stages.
// docs/algorithm.md, sections 6 to 8; docs/numerics.md, section 3.
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "tests/unit/cpu/step_world.h"

namespace pkv {
namespace {

using test::host_sets;
using test::StepCase;
using test::StepOutputs;
using test::StepWorld;

constexpr double kU = 0x1p-24;

std::vector<StepCase> cases() {
  std::vector<StepCase> list;
  const auto add = [&](const char* name, auto change) {
    StepCase c;
    c.name = name;
    change(c);
    list.push_back(c);
  };
  add("default", [](StepCase&) {});
  add("head_dim 128, larger zone",
      [](StepCase& c) { c.d = c.dv = 128, c.n = 3000, c.ppm = 50000; });
  add("scan with a guessed threshold",
      [](StepCase& c) { c.d = c.dv = 16, c.n = 20000, c.ppm = 20000, c.kv_heads = 1; });
  add("paper", [](StepCase& c) {
    c.codec = PKV_CODEC_POLAR4, c.vote = PKV_VOTE_TIER, c.rank = PKV_RANK_MEAN;
    c.tail = PKV_TAIL_DROP, c.sketch_bits = 0;
  });
  add("polar4, group", [](StepCase& c) { c.codec = PKV_CODEC_POLAR4, c.d = 72; });
  add("polar4, d 8", [](StepCase& c) { c.codec = PKV_CODEC_POLAR4, c.d = c.dv = 8; });
  add("scalar5", [](StepCase& c) { c.codec = PKV_CODEC_SCALAR5; });
  add("scalar5, d 8", [](StepCase& c) { c.codec = PKV_CODEC_SCALAR5, c.d = 8, c.dv = 16; });
  add("scalar5, d 576", [](StepCase& c) {
    c.codec = PKV_CODEC_SCALAR5, c.d = 576, c.dv = 512, c.n = 90, c.kv_heads = 1;
  });
  add("latents", [](StepCase& c) {
    c.d = 576, c.dv = 512, c.is_k_prefix = true, c.kv_heads = 1, c.group = 16, c.n = 120;
  });
  add("d 136", [](StepCase& c) { c.d = 136, c.dv = 24; });
  add("d 256", [](StepCase& c) { c.d = 256, c.dv = 8, c.n = 90; });
  add("d 264", [](StepCase& c) { c.d = 264, c.dv = 40, c.n = 90; });
  add("d 8", [](StepCase& c) { c.d = c.dv = 8; });
  add("d 40, dv 72", [](StepCase& c) { c.d = 40, c.dv = 72; });
  add("one head", [](StepCase& c) { c.group = 1; });
  add("two heads", [](StepCase& c) { c.group = 2; });
  add("three heads", [](StepCase& c) { c.group = 3; });
  add("five heads, a vote each",
      [](StepCase& c) { c.group = 5, c.vote_group = PKV_VOTE_GROUP_HEADS; });
  add("128 heads", [](StepCase& c) { c.group = 128, c.d = c.dv = 16, c.kv_heads = 1, c.n = 80; });
  add("rank mean", [](StepCase& c) { c.rank = PKV_RANK_MEAN; });
  add("norms", [](StepCase& c) { c.norms = true; });
  add("norms, mean", [](StepCase& c) { c.norms = true, c.rank = PKV_RANK_MEAN; });
  add("adaptive k", [](StepCase& c) { c.share = 0.7; });
  add("f32", [](StepCase& c) { c.dtype = PKV_DTYPE_F32; });
  add("f16", [](StepCase& c) { c.dtype = PKV_DTYPE_F16; });
  add("f16, dv 24", [](StepCase& c) { c.dtype = PKV_DTYPE_F16, c.d = 24, c.dv = 24; });
  add("two rounds", [](StepCase& c) { c.rounds = 2; });
  add("tail drop", [](StepCase& c) { c.tail = PKV_TAIL_DROP; });
  add("tail mean", [](StepCase& c) { c.tail = PKV_TAIL_MEAN; });
  add("tail mean without a sketch", [](StepCase& c) { c.tail = PKV_TAIL_MEAN, c.sketch_bits = 0; });
  add("sketch2",
      [](StepCase& c) { c.tail = PKV_TAIL_SKETCH, c.sketch_bits = 2, c.sketch_stride = 1; });
  add("sketch2, dv 24", [](StepCase& c) {
    c.tail = PKV_TAIL_SKETCH, c.sketch_bits = 2, c.sketch_stride = 1, c.dv = 24;
  });
  add("sketch2, dv 8", [](StepCase& c) {
    c.tail = PKV_TAIL_SKETCH, c.sketch_bits = 2, c.sketch_stride = 1, c.dv = 8;
  });
  add("sketch4",
      [](StepCase& c) { c.tail = PKV_TAIL_SKETCH, c.sketch_bits = 4, c.sketch_stride = 1; });
  add("sketch4, k 0", [](StepCase& c) { c.tail = PKV_TAIL_SKETCH, c.sketch_stride = 1, c.k = 0; });
  add("sketch4, every key a sample", [](StepCase& c) {
    c.tail = PKV_TAIL_SKETCH, c.sketch_stride = 1, c.tail_samples = 600, c.dv = 40;
  });
  add("all candidates", [](StepCase& c) { c.ppm = 1000000; });
  add("k beyond n", [](StepCase& c) { c.k = 100, c.n = 45; });
  add("one key", [](StepCase& c) { c.n = 1; });
  add("no keys", [](StepCase& c) { c.n = 0; });
  add("sharp", [](StepCase& c) { c.spread = 30.0F; });
  add("sharper", [](StepCase& c) { c.spread = 3000.0F; });
  add("in pieces", [](StepCase& c) {
    c.d = c.dv = 16, c.n = 70000, c.ppm = 20000, c.kv_heads = 1, c.group = 2;
  });
  add("in pieces, too many in one", [](StepCase& c) {
    c.d = c.dv = 16, c.n = 70000, c.ppm = 50000, c.kv_heads = 1, c.group = 1, c.cluster = 32000;
  });
  add("in pieces, a vote per head", [](StepCase& c) {
    c.d = c.dv = 8, c.n = 50000, c.ppm = 1000, c.kv_heads = 1, c.vote_group = PKV_VOTE_GROUP_HEADS;
  });
  add("in pieces, tier", [](StepCase& c) {
    c.d = c.dv = 24, c.n = 50000, c.ppm = 30000, c.kv_heads = 1, c.vote = PKV_VOTE_TIER;
    c.codec = PKV_CODEC_POLAR4;
  });
  add("in pages", [](StepCase& c) { c.page = 64; });
  add("in pages, f32, d 72",
      [](StepCase& c) { c.page = 64, c.d = 72, c.dv = 24, c.dtype = PKV_DTYPE_F32; });
  add("in pages, polar4, tier", [](StepCase& c) {
    c.page = 128, c.codec = PKV_CODEC_POLAR4, c.vote = PKV_VOTE_TIER, c.norms = true;
  });
  add("in pages, sketch4",
      [](StepCase& c) { c.page = 64, c.tail = PKV_TAIL_SKETCH, c.sketch_stride = 1; });
  add("in pages, latents", [](StepCase& c) {
    c.page = 64, c.d = 576, c.dv = 512, c.is_k_prefix = true, c.kv_heads = 1, c.group = 16;
    c.n = 150;
  });
  add("in pages, in pieces", [](StepCase& c) {
    c.page = 256, c.d = c.dv = 16, c.n = 70000, c.ppm = 20000, c.kv_heads = 1, c.group = 2;
  });
  add("two sets", [](StepCase& c) { c.has_sets = true; });
  add("two sets, sketch2, norms", [](StepCase& c) {
    c.has_sets = c.norms = true, c.tail = PKV_TAIL_SKETCH, c.sketch_bits = 2, c.sketch_stride = 1;
  });
  add("two query tokens", [](StepCase& c) { c.is_one_sequence = true; });
  add("two query tokens, one head", [](StepCase& c) { c.is_one_sequence = true, c.group = 1; });
  add("two query tokens, tier",
      [](StepCase& c) { c.is_one_sequence = true, c.vote = PKV_VOTE_TIER; });
  add("two query tokens in pieces", [](StepCase& c) {
    c.is_one_sequence = true, c.d = c.dv = 16, c.n = 70000, c.ppm = 20000, c.kv_heads = 1;
  });
  for (const float cap : {0.25F, 4.0F}) {
    add("soft cap", [cap](StepCase& c) { c.soft_cap = cap; });
    add("soft cap, polar4, share",
        [cap](StepCase& c) { c.soft_cap = cap, c.codec = PKV_CODEC_POLAR4, c.share = 0.7; });
    add("soft cap, sketch4, sharp", [cap](StepCase& c) {
      c.soft_cap = cap, c.tail = PKV_TAIL_SKETCH, c.sketch_stride = 1, c.spread = 30.0F;
    });
    add("soft cap, tail mean, one head",
        [cap](StepCase& c) { c.soft_cap = cap, c.tail = PKV_TAIL_MEAN, c.group = 1; });
  }
  add("sinks", [](StepCase& c) { c.has_sinks = true; });
  add("sinks, no keys", [](StepCase& c) { c.has_sinks = true, c.n = 0; });
  add("all at once", [](StepCase& c) {
    c.page = 64, c.has_sets = c.is_one_sequence = c.has_sinks = true, c.soft_cap = 4.0F;
  });
  add("flat", [](StepCase& c) { c.spread = 1e-20F; });
  return list;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.empty() || a.size() != b.size()) return a.size() == b.size();
  return std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// |a - b| <= bound, or both the same infinity or NaN.
bool near(float a, float b, double bound) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b);
  if (std::isinf(a) || std::isinf(b)) return a == b;
  return std::fabs(static_cast<double>(a) - static_cast<double>(b)) <= bound;
}

double largest(const std::vector<float>& x) {
  double m = 0.0;
  for (const float v : x) {
    if (std::isfinite(v)) m = std::max(m, std::fabs(static_cast<double>(v)));
  }
  return m;
}

// Bounds of docs/numerics.md, section 3, for a whole case: the largest sums of magnitudes.
struct Bounds {
  double estimate;  // polar4, generous: A_g <= sum |q k| of its decoded key and of the centre
  double logit;     // X: scale * estimates
  double eps;       // of a dense logit
  double value;     // max |v|, sketched values included

  Bounds(StepWorld& world, const StepCase& c, const StepOutputs& ref) {
    const double scale = 1.0 / std::sqrt(c.d);
    double row_sum = 0.0;
    double query = 0.0;
    for (size_t i = 0; i < world.queries.data().size(); i += static_cast<size_t>(c.d)) {
      double norm = 0.0;
      for (int32_t j = 0; j < c.d; ++j) {
        const double x = world.queries.data()[i + static_cast<size_t>(j)];
        norm += x * x;
      }
      query = std::max(query, std::sqrt(norm));
    }
    for (const auto* keys : {&world.keys, &world.sink_keys, &world.recent_keys}) {
      auto& data = const_cast<test::Tensor*>(keys)->data();
      for (size_t i = 0; i < data.size(); i += static_cast<size_t>(c.d)) {
        double norm = 0.0;
        for (int32_t j = 0; j < c.d; ++j) {
          const double x = data[i + static_cast<size_t>(j)];
          if (std::isfinite(x)) norm += x * x;
        }
        row_sum = std::max(row_sum, query * std::sqrt(norm));
      }
    }
    // The decoded key is at most about 1.5 times as long as the key; rotated sums of magnitudes
    // exceed the product of norms by at most sqrt(d) / sqrt(8) here (Cauchy-Schwarz per subspace).
    estimate = (c.d + c.d / 8 + 4) * kU * (4.0 * row_sum * std::sqrt(c.d));
    logit = scale * std::max(largest(ref.estimates), largest(ref.sample_estimates));
    eps = (c.d + 2) * kU * scale * row_sum;
    double norm = 0.0;
    auto& values = world.values.data();
    for (size_t i = 0; i < values.size(); i += static_cast<size_t>(c.dv)) {
      double sum = 0.0;
      for (int32_t j = 0; j < c.dv; ++j) {
        const double x = values[i + static_cast<size_t>(j)];
        sum += x * x;
      }
      norm = std::max(norm, std::sqrt(sum));
    }
    value = 1.0 + 1.5 * norm;
  }
};

// Of a logit, for its cap.
double cap_error(const StepCase& c) { return 8.0 * kU * static_cast<double>(c.soft_cap); }

void check_rerank(StepWorld& world, const StepCase& c, const StepOutputs& ref,
                  const StepOutputs& cpu) {
  const Bounds bounds(world, c, ref);
  const bool is_exact = c.codec != PKV_CODEC_POLAR4;
  const auto rows = static_cast<int64_t>(ref.counts.size());
  const int64_t stride = world.stride();
  for (int64_t head = 0; head < rows * c.group; ++head) {
    const int64_t row = head / c.group;
    for (int64_t i = 0; i < ref.candidate_counts[static_cast<size_t>(row)]; ++i) {
      const auto at = static_cast<size_t>(head * stride + i);
      if (is_exact) {
        REQUIRE(ref.estimates[at] == cpu.estimates[at]);
      } else {
        REQUIRE(near(ref.estimates[at], cpu.estimates[at], bounds.estimate));
      }
    }
  }
  const double estimate = is_exact ? 0.0 : bounds.estimate;
  for (size_t i = 0; i < ref.sample_estimates.size(); ++i) {
    REQUIRE(near(ref.sample_estimates[i], cpu.sample_estimates[i], estimate));
  }
  const double score_bound =
      2.0 * (4.0 * bounds.logit + std::min<double>(1024, static_cast<double>(stride)) + 8) * kU +
      estimate + 2.0 * cap_error(c);
  for (size_t i = 0; i < ref.rest_lse.size(); ++i) {
    REQUIRE(near(ref.rest_lse[i], cpu.rest_lse[i], score_bound + 520 * kU));
  }
  if (is_exact && c.rank == PKV_RANK_MEAN && !c.norms) {
    CHECK(ref.positions == cpu.positions);
    CHECK(same_bits(ref.scores, cpu.scores));
  }
  REQUIRE(ref.counts == cpu.counts);
  for (int64_t row = 0; row < rows; ++row) {
    std::map<int32_t, float> scores;
    const auto slot = [&](int64_t i) { return static_cast<size_t>(row * c.k + i); };
    const int32_t count = ref.counts[static_cast<size_t>(row)];
    for (int32_t i = 0; i < count; ++i) scores[ref.positions[slot(i)]] = ref.scores[slot(i)];
    for (int32_t i = 0; i < c.k; ++i) {
      const float score = cpu.scores[slot(i)];
      if (i >= count) {
        REQUIRE(cpu.positions[slot(i)] == -1);
        REQUIRE(score == -test::kInf);
        continue;
      }
      const auto found = scores.find(cpu.positions[slot(i)]);
      // Not among the reference's hits: then as good as its last.
      const float expected = found != scores.end() ? found->second : ref.scores[slot(count - 1)];
      REQUIRE(near(score, expected, score_bound));
      if (i == 0) continue;
      const float before = cpu.scores[slot(i - 1)];
      REQUIRE((before > score ||
               (before == score && cpu.positions[slot(i - 1)] < cpu.positions[slot(i)])));
    }
  }
}

void check_attend(StepWorld& world, const StepCase& c, const StepOutputs& ref,
                  const StepOutputs& cpu) {
  const Bounds bounds(world, c, ref);
  const double m = 1024 + 8;
  const double eps = bounds.eps + 2.0 * bounds.logit * kU + cap_error(c);
  for (size_t i = 0; i < ref.lse.size(); ++i) {
    CAPTURE(i);
    REQUIRE(near(ref.lse[i], cpu.lse[i], eps + m * kU + std::fabs(ref.lse[i]) * kU));
  }
  for (size_t i = 0; i < ref.output.size(); ++i) {
    CAPTURE(i);
    const double weights = 2.0 * (eps + m * kU) * bounds.value;
    const double l = 4.0 * (2.0 * bounds.logit * kU + m * kU + cap_error(c)) * 2.0 * bounds.value;
    REQUIRE(near(ref.output[i], cpu.output[i], weights + l));
  }
}

void check_equal(const StepOutputs& a, const StepOutputs& b) {
  CHECK(a.candidates == b.candidates);
  CHECK(a.candidate_counts == b.candidate_counts);
  CHECK(a.positions == b.positions);
  CHECK(a.counts == b.counts);
  CHECK(same_bits(a.scores, b.scores));
  CHECK(same_bits(a.estimates, b.estimates));
  CHECK(same_bits(a.rest_lse, b.rest_lse));
  CHECK(same_bits(a.sample_estimates, b.sample_estimates));
  CHECK(same_bits(a.output, b.output));
  CHECK(same_bits(a.lse, b.lse));
}

TEST_CASE("step: each stage as cpu_ref, the step as its stages, on every instruction set") {
  for (const StepCase& c : cases()) {
    StepWorld world(c);
    const StepOutputs ref = world.run_ref();
    for (const std::string& isa : host_sets()) {
      CAPTURE(c.name);
      CAPTURE(isa);
      world.twin.set("isa", isa);
      check_rerank(world, c, ref, world.run_cpu_rerank(ref));
      check_attend(world, c, ref, world.run_cpu_attend(ref));
      const StepOutputs stages = world.run_cpu_stages();
      CHECK(stages.candidates == ref.candidates);
      CHECK(stages.candidate_counts == ref.candidate_counts);
      check_equal(stages, world.run_cpu_step());
    }
    const StepOutputs many = world.run_cpu_step();
    world.twin.set("threads", "1");
    check_equal(many, world.run_cpu_step());
  }
}

}  // namespace
}  // namespace pkv
