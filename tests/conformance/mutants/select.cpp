// Faults of select.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "tests/conformance/mutants/mutant.h"

namespace pkv::mutants {
namespace {

int64_t rows_of(const pkv_select_args& a) { return int64_t{a.batch.batch} * a.kv_heads; }

struct Row {
  const float* votes;
  int64_t n;
  int32_t* candidates;
  int32_t* count;
};
Row row_of(const pkv_select_args& a, int64_t r) {
  return {a.votes + r * a.votes_stride, a.batch.lengths[r / a.kv_heads],
          a.candidates + r * a.candidates_stride, a.candidate_counts + r};
}

// Of the last vote that is in, the keys that have it: the largest positions instead.
void prefer_larger_positions(const pkv_select_args& a) {
  for (int64_t r = 0; r < rows_of(a); ++r) {
    const Row row = row_of(a, r);
    if (*row.count == 0) continue;
    float cut = row.votes[row.candidates[0]];
    for (int32_t c = 0; c < *row.count; ++c) cut = std::min(cut, row.votes[row.candidates[c]]);
    std::vector<int32_t> chosen;
    std::vector<int32_t> tied;
    for (int32_t i = 0; i < row.n; ++i) {
      if (row.votes[i] > cut) chosen.push_back(i);
      if (row.votes[i] == cut) tied.push_back(i);
    }
    const size_t missing = static_cast<size_t>(*row.count) - chosen.size();
    chosen.insert(chosen.end(), tied.end() - static_cast<int64_t>(missing), tied.end());
    std::sort(chosen.begin(), chosen.end());
    std::copy(chosen.begin(), chosen.end(), row.candidates);
  }
}

void lose_last(const pkv_select_args& a) {
  for (int64_t r = 0; r < rows_of(a); ++r) {
    const Row row = row_of(a, r);
    if (*row.count > 0) row.candidates[--*row.count] = -1;
  }
}

void swap_two(const pkv_select_args& a) {
  for (int64_t r = 0; r < rows_of(a); ++r) {
    const Row row = row_of(a, r);
    if (*row.count > 1) std::swap(row.candidates[0], row.candidates[1]);
  }
}

void fill_with_zero(const pkv_select_args& a) {
  for (int64_t r = 0; r < rows_of(a); ++r) {
    const Row row = row_of(a, r);
    std::fill(row.candidates + *row.count, row.candidates + a.candidates_stride, 0);
  }
}

pkv_status leave_counts(pkv_backend_device* device, pkv_backend_stream* stream,
                        const pkv_select_args* args, void* scratch) {
  const std::vector<int32_t> before(args->candidate_counts,
                                    args->candidate_counts + rows_of(*args));
  const pkv_status status = sound().select.run(device, stream, args, scratch);
  std::copy(before.begin(), before.end(), args->candidate_counts);
  return status;
}

// One vote more than the row has.
pkv_status read_beyond(pkv_backend_device* device, pkv_backend_stream* stream,
                       const pkv_select_args* args, void* scratch) {
  pkv_select_args changed = *args;
  std::vector<int64_t> lengths(args->batch.lengths, args->batch.lengths + args->batch.batch);
  for (int64_t& length : lengths) length = std::min(length + 1, args->batch.max_length);
  changed.batch.lengths = lengths.data();
  return sound().select.run(device, stream, &changed, scratch);
}

// Runs on votes that `change` has been through.
template <class Change>
pkv_status run_on(pkv_backend_device* device, pkv_backend_stream* stream,
                  const pkv_select_args* args, void* scratch, Change change) {
  pkv_select_args changed = *args;
  changed.votes_stride = args->batch.max_length;  // rows may lie gigabytes apart
  std::vector<float> votes(static_cast<size_t>(rows_of(*args) * changed.votes_stride));
  for (int64_t r = 0; r < rows_of(*args); ++r) {
    const Row row = row_of(*args, r);
    std::transform(row.votes, row.votes + row.n, votes.begin() + r * changed.votes_stride, change);
  }
  changed.votes = votes.data();
  return sound().select.run(device, stream, &changed, scratch);
}

pkv_status choose_nan(pkv_backend_device* device, pkv_backend_stream* stream,
                      const pkv_select_args* args, void* scratch) {
  return run_on(device, stream, args, scratch,
                [](float vote) { return std::isnan(vote) ? -INFINITY : vote; });
}

pkv_status order_zeros(pkv_backend_device* device, pkv_backend_stream* stream,
                       const pkv_select_args* args, void* scratch) {
  return run_on(device, stream, args, scratch,
                [](float vote) { return vote == 0.0F && std::signbit(vote) ? -1e-45F : vote; });
}

// The upper 16 bits only, as a radix select of one pass would.
pkv_status compare_halves(pkv_backend_device* device, pkv_backend_stream* stream,
                          const pkv_select_args* args, void* scratch) {
  return run_on(device, stream, args, scratch, [](float vote) {
    uint32_t bits = 0;
    std::memcpy(&bits, &vote, sizeof bits);
    bits &= 0xffff0000U;
    std::memcpy(&vote, &bits, sizeof bits);
    return vote;
  });
}

void drop_infinities(const pkv_select_args& a) {
  for (int64_t r = 0; r < rows_of(a); ++r) {
    const Row row = row_of(a, r);
    int32_t kept = 0;
    for (int32_t c = 0; c < *row.count; ++c) {
      if (row.votes[row.candidates[c]] != -INFINITY) row.candidates[kept++] = row.candidates[c];
    }
    std::fill(row.candidates + kept, row.candidates + a.candidates_stride, -1);
    *row.count = kept;
  }
}

constexpr auto kSelect = &pkv_backend::select;

constexpr Mutant kMutants[] = {
    {"select_larger_position",
     [](pkv_backend& t) { t.select.run = run_spoiled<kSelect, prefer_larger_positions>; }},
    {"select_misses_one", [](pkv_backend& t) { t.select.run = run_spoiled<kSelect, lose_last>; }},
    {"select_unordered", [](pkv_backend& t) { t.select.run = run_spoiled<kSelect, swap_two>; }},
    {"select_filler", [](pkv_backend& t) { t.select.run = run_spoiled<kSelect, fill_with_zero>; }},
    {"select_leaves_counts", [](pkv_backend& t) { t.select.run = leave_counts; }},
    {"select_reads_beyond", [](pkv_backend& t) { t.select.run = read_beyond; }},
    {"select_chooses_nan", [](pkv_backend& t) { t.select.run = choose_nan; }},
    {"select_orders_zeros", [](pkv_backend& t) { t.select.run = order_zeros; }},
    {"select_compares_halves", [](pkv_backend& t) { t.select.run = compare_halves; }},
    {"select_drops_infinities",
     [](pkv_backend& t) { t.select.run = run_spoiled<kSelect, drop_infinities>; }},
};

}  // namespace

std::span<const Mutant> select_mutants() { return kMutants; }

}  // namespace pkv::mutants
