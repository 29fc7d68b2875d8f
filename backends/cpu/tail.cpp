// docs/algorithm.md, section 8; docs/numerics.md, section 3. Bounded: exponentials and values in
// fp32, sums of exponentials in double.
#include "backends/cpu/tail.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "backends/cpu/log_sum.h"
#include "backends/cpu/prefetch.h"
#include "backends/cpu/query.h"
#include "backends/cpu/sample_places.h"
#include "backends/cpu/sketches.h"
#include "core/format/codec_sets.h"
#include "core/format/half.h"
#include "core/format/samples.h"

namespace pkv::cpu {
namespace {

constexpr float kNothing = -std::numeric_limits<float>::infinity();

bool reads_samples(const pkv_attend_args& a) {
  return a.tail == PKV_TAIL_SKETCH || a.tail == PKV_TAIL_SAMPLED;
}

// One row while its tail is added.
class Tail {
 public:
  Tail(const pkv_attend_args& a, const TailRow& row, const TailRoom& room, AttendState& state)
      : a_(a), row_(row), room_(room), state_(state), isa_(*state.isa) {}

  void add() {
    mark_fetched();
    for (int32_t j = 0; j < state_.dv; ++j) {
      room_.mean[j] =
          row_.good_count > 0
              ? static_cast<float>(row_.value_sums[j] / static_cast<double>(row_.good_count))
              : 0.0F;
    }
    if (reads_samples(a_)) list_sketches();
    float rests[kMaxGroup];
    for (int32_t g = 0; g < state_.group; ++g) rests[g] = rest_logit(g);
    ahead_.request(ahead_.end - ahead_.next);
    drop_bad();
    for (int32_t first = 0; first < state_.group; first += kSketchHeads) {
      add_heads(first, std::min(kSketchHeads, state_.group - first), rests + first);
    }
  }

 private:
  float* values(int32_t g) const { return state_.values + int64_t{g} * state_.padded_dv; }

  void mark_fetched() {
    std::fill_n(room_.is_fetched, row_.candidate_count, uint8_t{0});
    for (int32_t i = 0; i < row_.place_count; ++i) {
      if (row_.places[i] >= 0) room_.is_fetched[row_.places[i]] = 1;
    }
  }

  void list_sketch(int64_t entry, int32_t origin) {
    const void** line = room_.lines + line_count_;
    *line++ = row_.records.sketch_factor(entry);
    const uint8_t* sketch = row_.records.sketch(entry);
    const int64_t bytes = row_.records.layout->sketch_bytes;
    for (int64_t at = 0; at < bytes; at += kLine) *line++ = sketch + at;
    line_count_ = line - room_.lines;
    room_.entries[count_] = static_cast<int32_t>(entry);
    room_.origins[count_++] = origin;
  }

  // sketch: the candidates that were not fetched, then the samples that v_hat is made of: with
  // sampled those that were not fetched, with sketch those that are no candidates.
  void list_sketches() {
    const bool is_sketch = a_.tail == PKV_TAIL_SKETCH;
    for (int32_t c = 0; is_sketch && c < row_.candidate_count; ++c) {
      if (room_.is_fetched[c] == 0) list_sketch(row_.candidates[c], c);  // the stride is 1
    }
    first_sample_ = count_;
    const format::Samples samples = format::samples(*a_.codec.geometry, row_.n, a_.tail_samples);
    is_whole_ = is_sketch && samples.is_all();
    SampleSteps steps(samples);
    const int32_t* places = row_.sample_places;
    if (places == nullptr) {
      find_sample_places(samples, row_.candidates, row_.candidate_count, room_.sample_places);
      places = room_.sample_places;
    }
    for (int64_t i = 0; i < samples.count; ++i) {
      const int32_t place = places[i];
      const int64_t entry = steps.next();  // positions are multiples of the sketches' stride
      if (place >= 0 && (is_sketch || room_.is_fetched[place] != 0)) continue;
      list_sketch(entry, static_cast<int32_t>(i));
    }
    ahead_ = {room_.lines, room_.lines + line_count_};
  }

  // Reads the factors; a bad key has none, and is no sample.
  void drop_bad() {
    int64_t kept = 0;
    int64_t kept_candidates = 0;
    for (int64_t i = 0; i < count_; ++i) {
      const uint8_t* at = row_.records.sketch_factor(room_.entries[i]);
      const float factor = format::bf16_to_float(*reinterpret_cast<const uint16_t*>(at));
      if (std::isnan(factor)) continue;
      room_.entries[kept] = room_.entries[i];
      room_.origins[kept] = room_.origins[i];
      room_.factors[kept++] = factor;
      if (i < first_sample_) kept_candidates = kept;
    }
    count_ = kept;
    first_sample_ = kept_candidates;
  }

  // logits[i] of the candidates that were not fetched, -inf elsewhere.
  void candidate_logits(int32_t g) {
    const float* estimates = row_.estimates + g * row_.stride;
    scale_all(isa_, estimates, row_.candidate_count, state_.scale, room_.logits);
    cap_all(isa_, room_.logits, row_.candidate_count, state_.soft_cap);
    for (int32_t i = 0; i < row_.place_count; ++i) {
      if (row_.places[i] >= 0) room_.logits[row_.places[i]] = kNothing;
    }
  }

  // ln of the mass of what is neither fetched nor a token of its own.
  float rest_logit(int32_t g) {
    if (row_.good_count <= 0) return kNothing;
    if (a_.tail == PKV_TAIL_SKETCH) return row_.rest_lse[g];
    candidate_logits(g);
    const double others = log_sum_exp(isa_, room_.logits, row_.candidate_count, ahead_);
    const auto rest = static_cast<double>(row_.rest_lse[g]);
    const double max = std::max(others, rest);
    if (max == static_cast<double>(kNothing)) return kNothing;
    return static_cast<float>(max + std::log(std::exp(others - max) + std::exp(rest - max)));
  }

  // `rests`: rest_logit of these heads.
  void add_heads(int32_t first, int32_t heads, const float* rests) {
    std::fill_n(room_.weights, count_ * kSketchHeads, 0.0F);
    float sketched[kSketchHeads] = {};  // sum of a head's weights of sketches
    for (int32_t i = 0; i < heads; ++i) {
      const int32_t g = first + i;
      const float rest = rests[i];
      if (a_.tail == PKV_TAIL_SKETCH) sketched[i] += weigh_candidates(g, i, rest);
      if (rest == kNothing) continue;
      const float weight = add_token(rest, g, state_);
      if (weight == 0.0F) continue;
      const float l = reads_samples(a_) ? weigh_samples(g, i, weight) : 0.0F;
      sketched[i] += weight * l;
      float* out = values(g);
      for (int32_t j = 0; j < state_.dv; ++j) out[j] += weight * (1.0F - l) * room_.mean[j];
    }
    if (count_ > 0) add_sketched(first, heads, sketched);
  }

  // Column i of the weights: exp(logit - max) of the listed candidates; returns their sum. The
  // maximum that results covers `rest` too, so that these weights stay valid.
  float weigh_candidates(int32_t g, int32_t i, float rest) {
    const float* estimates = row_.estimates + g * row_.stride;
    for (int64_t c = 0; c < first_sample_; ++c) {
      room_.logits[c] = state_.scale * estimates[room_.origins[c]];
    }
    cap_all(isa_, room_.logits, first_sample_, state_.soft_cap);
    const float max = std::max(rest, largest(isa_, room_.logits, first_sample_));
    if (max == kNothing) return 0.0F;
    raise_maximum(max, g, state_);
    const ExpSums sums = exp_all(isa_, room_.logits, first_sample_, state_.maxima[g], room_.shares);
    state_.sums[g] += sums.sum;
    for (int64_t c = 0; c < first_sample_; ++c) {
      room_.weights[kSketchHeads * c + i] = room_.factors[c] * room_.shares[c];
    }
    return static_cast<float>(sums.sum);
  }

  // Column i of the weights: weight * l * o_i / sum of o_i of the listed samples; returns l.
  float weigh_samples(int32_t g, int32_t i, float weight) {
    const float* estimates = row_.sample_estimates + g * int64_t{a_.tail_samples};
    const int64_t samples = count_ - first_sample_;
    for (int64_t s = 0; s < samples; ++s) {
      room_.logits[s] = state_.scale * estimates[room_.origins[first_sample_ + s]];
    }
    cap_all(isa_, room_.logits, samples, state_.soft_cap);
    const float max = largest(isa_, room_.logits, samples);
    if (max == kNothing) return 0.0F;
    const ExpSums sums = exp_all(isa_, room_.logits, samples, max, room_.shares);
    const double N = sums.sum * sums.sum / sums.squares;
    const double l = is_whole_ ? 1.0 : N / (N + format::kSampleShrink);
    const auto unit = static_cast<float>(static_cast<double>(weight) * l / sums.sum);
    for (int64_t s = 0; s < samples; ++s) {
      const int64_t at = first_sample_ + s;
      room_.weights[kSketchHeads * at + i] = room_.factors[at] * (room_.shares[s] * unit);
    }
    return static_cast<float>(l);
  }

  // values += sum of weights * mu_v + unrotate(sum of sketches)
  void add_sketched(int32_t first, int32_t heads, const float* sketched) {
    const pkv_geometry& geometry = *a_.codec.geometry;
    const SketchList list = {row_.records,  geometry.sketch_bits, geometry.value_dim,
                             room_.entries, room_.weights,        count_};
    sum_sketches(isa_, list, room_.sums, state_.padded_dv);
    const float* mu_v =
        format::codec_row(a_.codec, a_.codec.value_center, row_.i, row_.kv_head, state_.dv);
    for (int32_t i = 0; i < heads; ++i) {
      if (sketched[i] == 0.0F) continue;
      float* sums = room_.sums + int64_t{i} * state_.padded_dv;
      unrotate_value(a_.codec, sums);
      float* out = values(first + i);
      for (int32_t j = 0; j < state_.dv; ++j) out[j] += sketched[i] * mu_v[j] + sums[j];
    }
  }

  const pkv_attend_args& a_;
  const TailRow& row_;
  const TailRoom& room_;
  AttendState& state_;
  const Isa& isa_;
  int64_t line_count_ = 0;
  LinesAhead ahead_{};        // of the listed sketches
  int64_t count_ = 0;         // listed sketches
  int64_t first_sample_ = 0;  // among them
  bool is_whole_ = false;     // every key is a sample
};

}  // namespace

TailRoom take_tail_room(Scratch& scratch, const pkv_attend_args& a) {
  TailRoom room{};
  if (a.tail == PKV_TAIL_DROP) return room;
  const int64_t padded_dv = round_up(a.codec.geometry->value_dim, 32);
  const int64_t samples = reads_samples(a) ? a.tail_samples : 0;
  const int64_t most = a.candidates_stride + samples;
  room.logits = scratch.take<float>(most);
  room.shares = scratch.take<float>(most);
  room.is_fetched = scratch.take<uint8_t>(a.candidates_stride);
  room.mean = scratch.take<float>(padded_dv);
  if (!reads_samples(a)) return room;
  room.sample_places = scratch.take<int32_t>(samples);
  const int64_t listed = a.tail == PKV_TAIL_SKETCH ? most : samples;
  room.entries = scratch.take<int32_t>(listed);
  room.lines =
      scratch.take<const void*>(listed * (1 + (a.codec.geometry->value_dim / 2 + kLine) / kLine));
  room.origins = scratch.take<int32_t>(listed);
  room.factors = scratch.take<float>(listed);
  room.weights = scratch.take<float>(listed * kSketchHeads);
  room.sums = scratch.take<float>(kSketchHeads * padded_dv);
  return room;
}

TailRow tail_row_of(const pkv_attend_args& a, const Layout& layout, int64_t r) {
  const pkv_geometry& geometry = *a.codec.geometry;
  const int64_t i = r / geometry.kv_heads;
  const int64_t first_head = r * (a.query_heads / geometry.kv_heads);
  TailRow row{};
  row.i = i;
  row.n = a.batch.lengths[i];
  row.kv_head = static_cast<int32_t>(r % geometry.kv_heads);
  const int64_t sequence = a.batch.sequences[i];
  const int64_t store_row = sequence * geometry.kv_heads + row.kv_head;
  row.candidates = a.candidates + r * a.candidates_stride;
  row.candidate_count = a.candidate_counts[r];
  row.estimates = a.estimates + first_head * a.candidates_stride;
  row.stride = a.candidates_stride;
  row.rest_lse = a.rest_lse + first_head;
  row.value_sums = a.value_sums + store_row * geometry.value_dim;
  row.good_count = a.good_counts[store_row];
  if (reads_samples(a)) {
    row.sample_estimates = a.sample_estimates + first_head * a.tail_samples;
    row.records = record_row(a.store, layout, geometry.kv_heads, sequence, row.kv_head);
  }
  return row;
}

void add_tail(const pkv_attend_args& args, const TailRow& row, const TailRoom& room,
              AttendState& state) {
  to_plain_order(state);
  Tail(args, row, room, state).add();
}

}  // namespace pkv::cpu
