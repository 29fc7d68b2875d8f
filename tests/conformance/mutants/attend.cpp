// Faults of attend.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "tests/conformance/mutants/mutant.h"

namespace pkv::mutants {
namespace {

int64_t heads_of(const pkv_attend_args& a) { return int64_t{a.batch.batch} * a.query_heads; }
int64_t rows_of(const pkv_attend_args& a) {
  return int64_t{a.batch.batch} * a.codec.geometry->kv_heads;
}

void take_base_two(const pkv_attend_args& a) {
  for (int64_t q = 0; a.lse != nullptr && q < heads_of(a); ++q) a.lse[q] *= 1.44269504F;
}

void lose_infinity(const pkv_attend_args& a) {
  for (int64_t q = 0; a.lse != nullptr && q < heads_of(a); ++q) {
    a.lse[q] = std::max(a.lse[q], -1e30F);
  }
}

// Elements of an f32 output without gaps.
template <class Change>
void for_output(const pkv_attend_args& a, Change change) {
  const bool is_plain = a.output.dtype == PKV_DTYPE_F32 && a.output.byte_offset == 0 &&
                        a.output.strides != nullptr && a.output.strides[1] == a.output.shape[2];
  if (!is_plain) return;
  auto* output = static_cast<float*>(a.output.data);
  for (int64_t i = 0; i < heads_of(a) * a.output.shape[2]; ++i) change(output[i]);
}

void scale_output(const pkv_attend_args& a) {
  for_output(a, [](float& value) { value *= 1.0F + 0x1p-12F; });
}

void round_output(const pkv_attend_args& a) {  // as if it had been bf16 on the way
  for_output(a, [](float& value) {
    uint32_t bits = 0;
    std::memcpy(&bits, &value, sizeof bits);
    bits &= 0xffff0000U;
    std::memcpy(&value, &bits, sizeof bits);
  });
}

void read_stale_rows(pkv_attend_args& a) {
  static thread_local std::vector<int32_t> counts;
  counts.assign(static_cast<size_t>(rows_of(a)), a.k);
  if (a.k > 0) a.counts = counts.data();
}

void read_whole_parts(pkv_attend_args& a) {
  for (int32_t p = 0; p < a.part_count; ++p) a.parts[p].lengths = nullptr;
}

void skip_last_part(pkv_attend_args& a) { a.part_count = std::min(a.part_count, 1); }

// The mean over all keys of the row instead of the good ones.
void divide_by_length(pkv_attend_args& a) {
  static thread_local std::vector<int64_t> counts;
  if (a.tail == PKV_TAIL_DROP) return;
  const int32_t h = a.codec.geometry->kv_heads;
  int32_t sequences = 0;
  for (int32_t i = 0; i < a.batch.batch; ++i) {
    sequences = std::max(sequences, a.batch.sequences[i] + 1);
  }
  counts.assign(a.good_counts, a.good_counts + int64_t{sequences} * h);
  for (int32_t r = 0; r < a.batch.batch * h; ++r) {
    int64_t& count = counts[static_cast<size_t>(a.batch.sequences[r / h] * h + r % h)];
    count = std::max(count, a.batch.lengths[r / h]);
  }
  a.good_counts = counts.data();
}

// Candidates that were not fetched vanish from the tail.
void drop_candidates(pkv_attend_args& a) {
  static thread_local std::vector<int32_t> counts;
  if (a.tail == PKV_TAIL_DROP) return;
  counts.assign(static_cast<size_t>(rows_of(a)), 0);
  a.candidate_counts = counts.data();
}

// They count twice: as rows, and in the tail.
void forget_fetched(pkv_attend_args& a) {
  static thread_local std::vector<int32_t> positions;
  positions.assign(static_cast<size_t>(rows_of(a)) * a.k, -1);
  if (a.k > 0) a.positions = positions.data();
}

void sketch_as_mean(pkv_attend_args& a) {
  if (a.tail == PKV_TAIL_SKETCH) a.tail = PKV_TAIL_MEAN;
}

void mean_as_drop(pkv_attend_args& a) {
  if (a.tail == PKV_TAIL_MEAN) a.tail = PKV_TAIL_DROP;
}

// Runs with estimates of samples that `change` has been through.
template <class Change>
void change_samples(pkv_attend_args& a, Change change) {
  static thread_local std::vector<float> estimates;
  if (a.tail != PKV_TAIL_SKETCH && a.tail != PKV_TAIL_SAMPLED) return;
  const int64_t count = heads_of(a) * a.tail_samples;
  estimates.assign(a.sample_estimates, a.sample_estimates + count);
  for (int64_t i = 0; i < count; ++i) estimates[static_cast<size_t>(i)] = change(i, estimates);
  a.sample_estimates = estimates.data();
}

void ignore_samples(pkv_attend_args& a) {
  change_samples(a, [](int64_t, const auto&) { return NAN; });
}

void read_bad_samples(pkv_attend_args& a) {
  change_samples(a, [](int64_t i, const auto& estimates) {
    const float estimate = estimates[static_cast<size_t>(i)];
    return std::isnan(estimate) ? 0.0F : estimate;
  });
}

// Those of head 0 of the call for all heads.
void use_first_samples(pkv_attend_args& a) {
  change_samples(a, [&](int64_t i, const auto& estimates) {
    return estimates[static_cast<size_t>(i % a.tail_samples)];
  });
}

void sampled_as_mean(pkv_attend_args& a) {
  if (a.tail == PKV_TAIL_SAMPLED) a.tail = PKV_TAIL_MEAN;
}

void use_first_center(pkv_attend_args& a) {
  static thread_local std::vector<float> centers;
  if (a.codec.value_center == nullptr) return;
  const int32_t dv = a.codec.geometry->value_dim;
  centers.clear();
  for (int32_t head = 0; head < a.codec.geometry->kv_heads; ++head) {
    centers.insert(centers.end(), a.codec.value_center, a.codec.value_center + dv);
  }
  a.codec.value_center = centers.data();
}

void ignore_scale(pkv_attend_args& a) { a.scale = 1.0F; }
void ignore_cap(pkv_attend_args& a) { a.soft_cap = 0.0F; }
void ignore_sinks(pkv_attend_args& a) { a.sink_logits = nullptr; }
void ignore_sets(pkv_attend_args& a) { forget_sets(a.codec); }
void turn_pages_late(pkv_attend_args& a) {
  static thread_local std::vector<void*> late;
  a.store.pages =
      late_pages(a.store.pages, a.store.pages_stride, a.batch.sequences, a.batch.batch, late);
}
void forget_output_strides(pkv_attend_args& a) { forget_strides(a.output); }
void forget_part_strides(pkv_attend_args& a) {
  for (int32_t p = 0; p < a.part_count; ++p) forget_strides(a.parts[p].values);
}

// The tokens of a part from one in front of its start on, where that lies in the same page.
void start_early(pkv_attend_args& a) {
  static thread_local std::vector<int64_t> starts;
  if (a.part_count == 0 || a.parts[0].starts == nullptr) return;
  starts.assign(a.parts[0].starts, a.parts[0].starts + a.batch.batch);
  for (int64_t& start : starts) start -= start % a.parts[0].key_pages.page_tokens != 0 ? 1 : 0;
  a.parts[0].starts = starts.data();
}

// Writes in front of its scratch, and of the 256 bytes that a plan keeps there for the lengths of
// dense parts.
pkv_status write_in_front(pkv_backend_device* device, pkv_backend_stream* stream,
                          const pkv_attend_args* args, void* scratch) {
  static_cast<uint8_t*>(scratch)[-257] ^= 1;
  return sound().attend.run(device, stream, args, scratch);
}

constexpr auto kAttend = &pkv_backend::attend;

constexpr Mutant kMutants[] = {
    {"attend_base_2", [](pkv_backend& t) { t.attend.run = run_spoiled<kAttend, take_base_two>; }},
    {"attend_lse_not_inf",
     [](pkv_backend& t) { t.attend.run = run_spoiled<kAttend, lose_infinity>; }},
    {"attend_output_scaled",
     [](pkv_backend& t) { t.attend.run = run_spoiled<kAttend, scale_output>; }},
    {"attend_output_rounded",
     [](pkv_backend& t) { t.attend.run = run_spoiled<kAttend, round_output>; }},
    {"attend_stale_rows",
     [](pkv_backend& t) { t.attend.run = run_changed<kAttend, read_stale_rows>; }},
    {"attend_whole_parts",
     [](pkv_backend& t) { t.attend.run = run_changed<kAttend, read_whole_parts>; }},
    {"attend_skips_part",
     [](pkv_backend& t) { t.attend.run = run_changed<kAttend, skip_last_part>; }},
    {"attend_mean_of_all_keys",
     [](pkv_backend& t) { t.attend.run = run_changed<kAttend, divide_by_length>; }},
    {"attend_drops_candidates",
     [](pkv_backend& t) { t.attend.run = run_changed<kAttend, drop_candidates>; }},
    {"attend_counts_twice",
     [](pkv_backend& t) { t.attend.run = run_changed<kAttend, forget_fetched>; }},
    {"attend_sketch_as_mean",
     [](pkv_backend& t) { t.attend.run = run_changed<kAttend, sketch_as_mean>; }},
    {"attend_ignores_samples",
     [](pkv_backend& t) { t.attend.run = run_changed<kAttend, ignore_samples>; }},
    {"attend_reads_bad_samples",
     [](pkv_backend& t) { t.attend.run = run_changed<kAttend, read_bad_samples>; }},
    {"attend_first_samples",
     [](pkv_backend& t) { t.attend.run = run_changed<kAttend, use_first_samples>; }},
    {"attend_sampled_as_mean",
     [](pkv_backend& t) { t.attend.run = run_changed<kAttend, sampled_as_mean>; }},
    {"attend_mean_as_drop",
     [](pkv_backend& t) { t.attend.run = run_changed<kAttend, mean_as_drop>; }},
    {"attend_first_value_center",
     [](pkv_backend& t) { t.attend.run = run_changed<kAttend, use_first_center>; }},
    {"attend_ignores_scale",
     [](pkv_backend& t) { t.attend.run = run_changed<kAttend, ignore_scale>; }},
    {"attend_ignores_cap", [](pkv_backend& t) { t.attend.run = run_changed<kAttend, ignore_cap>; }},
    {"attend_ignores_sinks",
     [](pkv_backend& t) { t.attend.run = run_changed<kAttend, ignore_sinks>; }},
    {"attend_ignores_sets",
     [](pkv_backend& t) { t.attend.run = run_changed<kAttend, ignore_sets>; }},
    {"attend_starts_early",
     [](pkv_backend& t) { t.attend.run = run_changed<kAttend, start_early>; }},
    {"attend_late_store_pages",
     [](pkv_backend& t) { t.attend.run = run_changed<kAttend, turn_pages_late>; }},
    {"attend_ignores_output_strides",
     [](pkv_backend& t) { t.attend.run = run_changed<kAttend, forget_output_strides>; }},
    {"attend_ignores_part_strides",
     [](pkv_backend& t) { t.attend.run = run_changed<kAttend, forget_part_strides>; }},
    {"attend_in_front", [](pkv_backend& t) { t.attend.run = write_in_front; }},
};

}  // namespace

std::span<const Mutant> attend_mutants() { return kMutants; }

}  // namespace pkv::mutants
