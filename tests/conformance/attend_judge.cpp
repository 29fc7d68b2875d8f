#include "tests/conformance/attend_judge.h"

#include <algorithm>
#include <cmath>

#include "fmt/core.h"
#include "tests/conformance/attend_tail.h"
#include "tests/conformance/failure.h"
#include "tests/conformance/tolerance.h"

namespace pkv::conformance {
namespace {

// K and V of a part or of the fetched rows as numbers, [b * h, t, d] and [b * h, t, dv].
struct Tokens {
  std::vector<float> keys;
  std::vector<float> values;
  int64_t t;
  int64_t value_width;  // elements from one value to the next: d for a prefix of the keys

  Tokens(const PartInput& part, int64_t d)
      : keys(gather(part.keys, part.keys.memory).floats()),
        values(part.values ? gather(*part.values, part.values->memory).floats() : keys),
        t(part.keys.shape[2]),
        value_width(part.values ? part.values->shape[3] : d) {}
};

// What bounds the errors of one query head.
struct Sizes {
  double eps = 0.0;             // of a logit
  int64_t m = 0;                // entries
  std::vector<double> largest;  // [dv] max_i |v_ij|
  std::vector<double> of_tail;  // [dv] of the tail's values, whatever their weights
};

class Sizer {
 public:
  Sizer(const Codec& codec, const Zone& zone, const AttendInput& input)
      : codec_(codec),
        zone_(zone),
        input_(input),
        queries_(gather(input.queries, input.queries.memory).floats()) {
    for (const PartInput& part : input.parts) parts_.emplace_back(part, codec.d());
    if (input.rows) rows_.emplace_back(*input.rows, codec.d());
  }

  Sizes of_head(int64_t i, int32_t query_head) const {
    const int32_t kv_head = query_head / (input_.query_heads / codec_.heads());
    const int64_t r = i * codec_.heads() + kv_head;
    const int64_t q = i * input_.query_heads + query_head;
    Sizes sizes;
    sizes.largest.assign(static_cast<size_t>(codec_.dv()), 0.0);
    sizes.of_tail = sizes.largest;
    for (size_t p = 0; p < parts_.size(); ++p) {
      const auto& lengths = input_.parts[p].lengths;
      add_tokens(parts_[p], r, q, lengths ? (*lengths)[static_cast<size_t>(i)] : parts_[p].t,
                 sizes);
    }
    if (input_.k > 0) add_tokens(rows_[0], r, q, input_.counts[static_cast<size_t>(r)], sizes);
    if (input_.tail != PKV_TAIL_DROP) add_tail(i, query_head, sizes);
    if (!input_.sink_logits.empty()) ++sizes.m;
    sizes.eps += cap_error(input_.soft_cap);
    return sizes;
  }

 private:
  double scale() const { return static_cast<double>(input_.scale); }

  void add_tokens(const Tokens& tokens, int64_t r, int64_t q, int64_t count, Sizes& sizes) const {
    const int64_t d = codec_.d();
    for (int64_t t = r * tokens.t; t < r * tokens.t + count; ++t) {
      double magnitude = 0.0;
      for (int64_t j = 0; j < d; ++j) {
        magnitude += std::fabs(static_cast<double>(queries_[static_cast<size_t>(q * d + j)]) *
                               static_cast<double>(tokens.keys[static_cast<size_t>(t * d + j)]));
      }
      sizes.eps = std::max(sizes.eps, logit(codec_.d(), scale(), magnitude));
      for (size_t j = 0; j < sizes.largest.size(); ++j) {
        const size_t at = static_cast<size_t>(t * tokens.value_width) + j;
        sizes.largest[j] =
            std::max(sizes.largest[j], std::fabs(static_cast<double>(tokens.values[at])));
      }
      ++sizes.m;
    }
  }

  void add_tail(int64_t i, int32_t query_head, Sizes& sizes) const {
    const TailSizes tail = tail_sizes(codec_, zone_, input_, i, query_head);
    sizes.eps = std::max(sizes.eps, tail.eps);
    sizes.m += tail.entries;
    for (size_t j = 0; j < sizes.largest.size(); ++j) {
      sizes.largest[j] = std::max(sizes.largest[j], tail.largest[j]);
      sizes.of_tail[j] = tail.sketch_error + tail.shrink[j];
    }
  }

  const Codec& codec_;
  const Zone& zone_;
  const AttendInput& input_;
  std::vector<float> queries_;
  std::vector<Tokens> parts_;
  std::vector<Tokens> rows_;  // one or none
};

}  // namespace

void judge_attention(const Codec& codec, const Zone& zone, const AttendInput& input,
                     const Attention& expected, const Attention& got) {
  const Sizer sizer(codec, zone, input);
  const auto dv = static_cast<int64_t>(codec.dv());
  for (int64_t i = 0; i < input.batch.size(); ++i) {
    for (int32_t query_head = 0; query_head < input.query_heads; ++query_head) {
      const Sizes sizes = sizer.of_head(i, query_head);
      const int64_t q = i * input.query_heads + query_head;
      const std::string head = fmt::format("entry {}, query head {}", i, query_head);
      if (input.wants_lse) {
        const auto a = static_cast<double>(expected.lse[static_cast<size_t>(q)]);
        const auto b = static_cast<double>(got.lse[static_cast<size_t>(q)]);
        const double tolerance = std::isfinite(a) ? attend_lse(sizes.eps, sizes.m, a) : 0.0;
        if (!is_close(a, b, tolerance)) {
          throw Failure(fmt::format("lse of {}: expected {:.9g}, got {:.9g}, tolerance {:.3g}",
                                    head, a, b, tolerance));
        }
      }
      for (int64_t j = 0; j < dv; ++j) {
        const auto a = static_cast<double>(expected.output.at(q * dv + j));
        const auto b = static_cast<double>(got.output.at(q * dv + j));
        double tolerance = 0.0;  // nothing to attend to: exactly 0
        if (sizes.m > 0 && std::isfinite(a)) {
          const auto at = static_cast<size_t>(j);
          tolerance = sizes.of_tail[at] +
                      attend_output(sizes.eps, sizes.m, sizes.largest[at], a, input.output_dtype);
        }
        if (is_close(a, b, tolerance)) continue;
        throw Failure(
            fmt::format("output of {}, element {}: expected {:.9g}, got {:.9g}, tolerance {:.3g}",
                        head, j, a, b, tolerance));
      }
    }
  }
}

}  // namespace pkv::conformance
