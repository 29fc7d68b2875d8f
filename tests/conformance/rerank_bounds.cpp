#include "tests/conformance/rerank_bounds.h"

#include <algorithm>
#include <cmath>

#include "tests/conformance/half.h"
#include "tests/conformance/tolerance.h"

namespace pkv::conformance {
namespace {

constexpr int kValueNorms = 7;

int32_t sequence_of(const Codec& codec, const RerankInput& input, size_t r) {
  return input.batch.sequences[r / static_cast<size_t>(codec.heads())];
}

const Records& records_of(const Codec& codec, const Zone& zone, const RerankInput& input,
                          size_t r) {
  const auto heads = static_cast<size_t>(codec.heads());
  const auto sequence = static_cast<size_t>(sequence_of(codec, input, r));
  return zone.rows[sequence * heads + r % heads];
}

}  // namespace

bool is_exact(const Codec& codec, const RerankInput& input) {
  return codec.geometry.codec != PKV_CODEC_POLAR4 && input.rank == PKV_RANK_MEAN &&
         input.weigh_norms == 0;
}

RowBounds::RowBounds(const Codec& codec, const Zone& zone, const RerankInput& input, size_t r)
    : codec_(std::make_shared<const Codec>(codec.of_sequence(sequence_of(codec, input, r)))),
      input_(input),
      r_(r),
      group_(input.query_heads / codec.heads()),
      n_(input.batch.lengths[r / static_cast<size_t>(codec.heads())]),
      records_(records_of(codec, zone, input, r)),
      samples_(sample_positions(codec.geometry, n_, input.tail_samples)) {
  const std::vector<float> queries = gather(input.queries, input.queries.memory).floats();
  const auto kv_head = static_cast<int32_t>(r % static_cast<size_t>(codec.heads()));
  const auto d = static_cast<size_t>(codec.d());
  const auto all_heads = std::span(queries);
  is_bad_query_ = conformance::is_bad_query(
      *codec_, kv_head, all_heads.subspan(head(0) * d, static_cast<size_t>(group_) * d));
  if (codec.geometry.codec != PKV_CODEC_POLAR4) return;
  for (int32_t g = 0; g < group_; ++g) {
    sizes_.emplace_back(*codec_, kv_head, all_heads.subspan(head(g) * d, d));
  }
}

bool RowBounds::is_good(int32_t position) const {
  return !is_bad(codec_->geometry, records_, position);
}

bool RowBounds::is_candidate(int32_t position) const {
  return std::binary_search(candidates().begin(), candidates().end(), position);
}

double RowBounds::estimate(int32_t g, int64_t position) const {
  if (sizes_.empty()) return 0.0;
  return polar_estimate(codec_->d(), sizes_[static_cast<size_t>(g)].polar(records_, position));
}

RowBounds::Sizes RowBounds::sizes_of(const Rows<float>& estimates,
                                     const std::vector<int32_t>& positions, float soft_cap) const {
  const auto scale = static_cast<double>(input_.scale);
  Sizes sizes;
  for (int32_t g = 0; g < group_; ++g) {
    const std::vector<float>& of_head = estimates[head(g)];
    for (size_t c = 0; c < positions.size(); ++c) {
      const double logit = capped(scale * static_cast<double>(of_head[c]), soft_cap);
      sizes.X = std::max(sizes.X, std::fabs(logit));
      sizes.error = std::max(sizes.error, scale * estimate(g, positions[c]) + cap_error(soft_cap));
    }
  }
  return sizes;
}

double RowBounds::with_norms(double error, const Hits& all) const {
  double ln_nv = 0.0;
  double score = 0.0;
  for (const int32_t position : candidates()) {
    const double nv = bf16_to_float(records_.number(kValueNorms, position));
    if (nv > 0.0) ln_nv = std::max(ln_nv, std::fabs(std::log(nv)));
  }
  for (size_t c = 0; c < candidates().size(); ++c) {
    const double of_key = all.scores[r_][c];
    if (of_key > -1e29) score = std::max(score, std::fabs(of_key));  // below: nv = 0, exact
  }
  return error + norm_term(ln_nv, score);
}

double RowBounds::score(const Hits& all) const {
  if (is_exact(*codec_, input_) || candidates().empty()) return 0.0;
  const auto scale = static_cast<double>(input_.scale);
  const bool is_group = input_.rank == PKV_RANK_GROUP;
  const Sizes sizes = sizes_of(all.estimates, candidates(), is_group ? input_.soft_cap : 0.0F);
  const auto m = static_cast<int64_t>(candidates().size());
  double error = 0.0;
  if (is_group) {
    error = group_score(sizes.X, m, sizes.error);
  } else if (!sizes_.empty()) {
    error = mean_score(group_, sizes.X / scale, sizes.error / scale);
  }
  return input_.weigh_norms != 0 ? with_norms(error, all) : error;
}

double RowBounds::rest(double X) const {
  int64_t m = 0;
  double error = 0.0;
  for (const int32_t position : samples_) {
    if (is_candidate(position) || !is_good(position)) continue;
    ++m;
    for (int32_t g = 0; g < group_; ++g) {
      error = std::max(error, static_cast<double>(input_.scale) * estimate(g, position) +
                                  cap_error(input_.soft_cap));
    }
  }
  return rest_lse(X, m, error);
}

}  // namespace pkv::conformance
