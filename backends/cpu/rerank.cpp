// docs/algorithm.md, sections 6.2 to 6.4. Not here: estimates (estimate.cpp), scores (score.cpp).
#include "backends/cpu/rerank.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "backends/cpu/log_sum.h"
#include "backends/cpu/sample_places.h"
#include "backends/cpu/score.h"
#include "core/format/half.h"
#include "core/format/samples.h"

namespace pkv::cpu {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

bool wants_samples(const pkv_rerank_args& a) {
  return a.rest_lse != nullptr || a.sample_estimates != nullptr;
}

// + ln nv, -1e30 for nv = 0
void weigh_norms(const RerankRow& row, const Estimator& e, float* scores) {
  for (int32_t c = 0; c < row.candidate_count; ++c) {
    const uint8_t* norm = e.records.norm(row.candidates[c]);
    const float nv = format::bf16_to_float(*reinterpret_cast<const uint16_t*>(norm));
    scores[c] = nv == 0.0F ? -kEstimateLimit
                           : static_cast<float>(static_cast<double>(scores[c]) +
                                                std::log(static_cast<double>(nv)));
  }
}

// An integer that orders like (score descending, place ascending). Scores are no NaN.
uint64_t sort_key(float score, int32_t place) {
  const auto bits = std::bit_cast<uint32_t>(score + 0.0F);  // one zero
  const uint32_t ascending = (bits >> 31) != 0 ? ~bits : bits | 0x80000000U;
  return uint64_t{~ascending} << 32 | static_cast<uint32_t>(place);
}

// The places of the min(k, candidates) best, best first, in keys; returns their number.
int32_t best_places(const pkv_rerank_args& a, const RerankRow& row, const RerankRoom& room) {
  Survivors best = room.best;
  reset(best, std::min(a.k, row.candidate_count), -kInfinity);
  if (best.wanted == 0) return 0;
  best.count = row.candidate_count;
  std::copy_n(room.scores, row.candidate_count, best.values);
  for (int32_t c = 0; c < row.candidate_count; ++c) best.positions[c] = c;
  keep_best(best);
  for (int64_t i = 0; i < best.count; ++i) {
    room.keys[i] = sort_key(best.values[i], best.positions[i]);
  }
  std::sort(room.keys, room.keys + best.count);
  return static_cast<int32_t>(best.count);
}

// 6.3: how many of the `most` hits listed in `keys` stay.
int32_t adapted_count(const pkv_rerank_args& a, const RerankRow& row, const RerankRoom& room,
                      int32_t most) {
  if (a.share == 0.0 || row.candidate_count == 0) return most;
  const auto best =
      static_cast<double>(*std::max_element(room.scores, room.scores + row.candidate_count));
  const auto weight = [&](int32_t place) {
    return std::exp(static_cast<double>(room.scores[place]) - best);
  };
  double total = 0.0;
  for (int32_t c = 0; c < row.candidate_count; ++c) total += weight(c);
  int32_t count = 0;
  for (double held = 0.0; held < a.share * total && count < most; ++count) {
    held += weight(static_cast<int32_t>(room.keys[count] & 0xffffffffU));
  }
  return std::min(std::max(count, std::min(a.k_min, row.candidate_count)), most);
}

void write_fillers(const pkv_rerank_args& a, const RerankRow& row, int32_t count) {
  std::fill(row.positions + count, row.positions + a.k, -1);
  if (row.scores != nullptr) std::fill(row.scores + count, row.scores + a.k, -kInfinity);
  *row.count = count;
}

}  // namespace

RerankRoom take_rerank_room(Scratch& scratch, const Isa& isa, const pkv_rerank_args& a) {
  const pkv_geometry& geometry = *a.codec.geometry;
  const int64_t group = a.query_heads / geometry.kv_heads;
  RerankRoom room{};
  room.estimator = take_estimator(scratch, isa, geometry, a.query_heads);
  if (a.estimates == nullptr) room.estimates = scratch.take<float>(group * a.candidates_stride);
  if (a.tail_samples > 0) {
    room.sample_estimates = scratch.take<float>(group * a.tail_samples);
    room.samples = scratch.take<int32_t>(a.tail_samples);
    room.lines = scratch.take<const void*>(2 * int64_t{a.tail_samples});
    room.sample_places = scratch.take<int32_t>(a.tail_samples);
    room.logits = scratch.take<float>(a.tail_samples);
  }
  room.scores = scratch.take<float>(a.candidates_stride);
  if (a.rank == PKV_RANK_GROUP) room.shares = scratch.take<float>(group * a.candidates_stride);
  room.keys = scratch.take<uint64_t>(a.k);
  room.best = take_survivors(scratch, isa, a.candidates_stride, a.candidates_stride);
  return room;
}

RerankRow rerank_row_of(const pkv_rerank_args& a, const RerankRoom& room, int64_t r) {
  const int32_t kv_heads = a.codec.geometry->kv_heads;
  const int64_t first_head = r * (a.query_heads / kv_heads);
  RerankRow row{};
  row.r = r;
  row.n = a.batch.lengths[r / kv_heads];
  row.candidates = a.candidates + r * a.candidates_stride;
  row.stride = a.candidates_stride;
  row.estimates =
      a.estimates == nullptr ? room.estimates : a.estimates + first_head * a.candidates_stride;
  row.positions = a.positions + r * a.k;
  row.scores = a.scores == nullptr ? nullptr : a.scores + r * a.k;
  row.count = a.counts + r;
  row.rest_lse = a.rest_lse == nullptr ? nullptr : a.rest_lse + first_head;
  if (wants_samples(a)) {
    row.sample_estimates = a.sample_estimates == nullptr
                               ? room.sample_estimates
                               : a.sample_estimates + first_head * a.tail_samples;
  }
  return row;
}

void write_no_hits(const pkv_rerank_args& a, const RerankRow& row, int32_t group) {
  write_fillers(a, row, 0);
  if (row.rest_lse != nullptr) std::fill_n(row.rest_lse, group, -kInfinity);
  if (row.sample_estimates != nullptr) {
    std::fill_n(row.sample_estimates, int64_t{group} * a.tail_samples, kNan);
  }
}

namespace {

// Positions of the samples; returns their lines, of which records are not expected to take two.
LinesAhead list_samples(const pkv_rerank_args& a, const RerankRow& row, const RerankRoom& room) {
  if (!wants_samples(a)) return {};
  const format::Samples samples = format::samples(*a.codec.geometry, row.n, a.tail_samples);
  SampleSteps steps(samples);
  const RecordRow& records = room.estimator.records;
  for (int64_t i = 0; i < samples.count; ++i) {
    room.samples[i] = static_cast<int32_t>(samples.stride * steps.next());
    room.lines[2 * i] = records.record(room.samples[i]);
    room.lines[2 * i + 1] = records.factor(room.samples[i]);
  }
  return {room.lines, room.lines + 2 * samples.count};
}

}  // namespace

void write_hits(const pkv_rerank_args& a, const RerankRow& row, const RerankRoom& room) {
  const LinesAhead samples = list_samples(a, row, room);
  if (a.k == 0 && a.estimates == nullptr && a.rest_lse == nullptr) {  // the candidates are enough
    write_fillers(a, row, 0);
    return;
  }
  const Estimator& e = room.estimator;
  estimate(e, row.candidates, row.candidate_count, BadKeys::kLowest, row.estimates, row.stride);
  const RowEstimates estimates = {row.estimates, row.stride, e.group, row.candidate_count};
  if (a.rank == PKV_RANK_GROUP) {
    score_by_group(*e.isa, estimates, a.scale, a.soft_cap, samples, room.shares, room.scores);
  } else {
    score_by_mean(*e.isa, estimates, room.scores);
  }
  if (a.weigh_norms != 0) weigh_norms(row, e, room.scores);

  const int32_t count = adapted_count(a, row, room, best_places(a, row, room));
  for (int32_t slot = 0; slot < count; ++slot) {
    const auto place = static_cast<int32_t>(room.keys[slot] & 0xffffffffU);
    row.positions[slot] = row.candidates[place];
    if (row.scores != nullptr) row.scores[slot] = room.scores[place];
    if (row.places != nullptr) row.places[slot] = place;
  }
  write_fillers(a, row, count);
}

void write_samples(const pkv_rerank_args& a, const RerankRow& row, const RerankRoom& room) {
  if (!wants_samples(a)) return;
  const Estimator& e = room.estimator;
  const int64_t most = a.tail_samples;
  const format::Samples samples = format::samples(*a.codec.geometry, row.n, a.tail_samples);
  estimate(e, room.samples, samples.count, BadKeys::kNan, row.sample_estimates, most);
  for (int32_t g = 0; g < e.group; ++g) {
    std::fill(row.sample_estimates + g * most + samples.count,
              row.sample_estimates + (g + 1) * most, kNan);
  }
  if (row.rest_lse == nullptr) return;

  // Of the samples that are no candidates, bad ones included; `samples` lists them from now on.
  find_sample_places(samples, row.candidates, row.candidate_count, room.sample_places);
  int64_t seen = 0;
  for (int64_t i = 0; i < samples.count; ++i) {
    room.samples[seen] = static_cast<int32_t>(i);
    seen += room.sample_places[i] < 0 ? 1 : 0;
  }
  const auto R = static_cast<double>(row.n - row.candidate_count);
  const double factor = seen == 0 ? 0.0 : std::log(R / static_cast<double>(seen));
  for (int32_t g = 0; g < e.group; ++g) {
    const float* estimates = row.sample_estimates + g * most;
    for (int64_t i = 0; i < seen; ++i) room.logits[i] = a.scale * estimates[room.samples[i]];
    cap_all(*e.isa, room.logits, seen, a.soft_cap);
    row.rest_lse[g] = static_cast<float>(log_sum_exp(*e.isa, room.logits, seen) + factor);
  }
}

}  // namespace pkv::cpu
