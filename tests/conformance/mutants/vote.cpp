// Faults of vote.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <vector>

#include "tests/conformance/mutants/mutant.h"

namespace pkv::mutants {
namespace {

int64_t rows_of(const pkv_vote_args& a) {
  return int64_t{a.batch.batch} * a.codec.geometry->kv_heads;
}
int64_t length_of(const pkv_vote_args& a, int64_t row) {
  return a.batch.lengths[row / a.codec.geometry->kv_heads];
}

void raise_vote(const pkv_vote_args& a) {
  if (rows_of(a) > 0 && length_of(a, 0) > 0) next<float, uint32_t>(a.votes[length_of(a, 0) - 1]);
}

void vote_for_bad_keys(const pkv_vote_args& a) {
  for (int64_t r = 0; r < rows_of(a); ++r) {
    for (int64_t i = 0; i < length_of(a, r); ++i) {
      float& vote = a.votes[r * a.votes_stride + i];
      if (std::isnan(vote)) vote = 0.0F;
    }
  }
}

void write_behind_row(const pkv_vote_args& a) {
  if (rows_of(a) > 0) a.votes[length_of(a, 0)] = 0.0F;
}

void write_behind_all(const pkv_vote_args& a) {
  if (rows_of(a) > 0) a.votes[rows_of(a) * a.votes_stride] = 0.0F;
}

void write_in_front(const pkv_vote_args& a) {
  if (rows_of(a) > 0) a.votes[-1] = 0.0F;
}

void write_query(const pkv_vote_args& a) {
  if (rows_of(a) == 0) return;
  auto* first = static_cast<uint8_t*>(a.queries.data) + a.queries.byte_offset;
  *first ^= 1;
}

void write_store(const pkv_vote_args& a) {
  if (rows_of(a) > 0) *static_cast<uint8_t*>(a.store.base) ^= 1;
}

// Right on every other call only.
void spoil_some_calls(const pkv_vote_args& a) {
  static std::atomic<int> calls = 0;
  if (++calls % 2 == 0) raise_vote(a);
}

void sum_heads(pkv_vote_args& a) { a.vote_group = PKV_VOTE_GROUP_SUM; }
void count_keys(pkv_vote_args& a) { a.rho_of = PKV_RHO_OF_KEYS; }
void forget_query_strides(pkv_vote_args& a) { forget_strides(a.queries); }

// The entry's number where the sequence's is meant.
void use_entries(pkv_vote_args& a) {
  static thread_local std::vector<int32_t> entries;
  entries.clear();
  for (int32_t i = 0; i < a.batch.batch; ++i) entries.push_back(i);
  a.batch.sequences = entries.data();
}

// Counts in its scratch without clearing it first.
pkv_status more_scratch(pkv_backend_device* device, const pkv_vote_args* args, int64_t* out) {
  const pkv_status status = sound().vote.scratch_bytes(device, args, out);
  *out += 64;
  return status;
}
pkv_status count_in_scratch(pkv_backend_device* device, pkv_backend_stream* stream,
                            const pkv_vote_args* args, void* scratch) {
  auto* counter = static_cast<uint32_t*>(scratch);
  const bool is_clear = *counter == 0;
  const pkv_status status =
      sound().vote.run(device, stream, args, static_cast<uint8_t*>(scratch) + 64);
  if (status == PKV_OK && !is_clear) raise_vote(*args);
  return status;
}

// Refuses too late.
pkv_status refuse_after_writing(pkv_backend_device* device, pkv_backend_stream* stream,
                                const pkv_vote_args* args, void* scratch) {
  sound().vote.run(device, stream, args, scratch);
  return PKV_UNIMPLEMENTED;
}

void ignore_sets(pkv_vote_args& a) { forget_sets(a.codec); }
void turn_pages_late(pkv_vote_args& a) {
  static thread_local std::vector<void*> late;
  a.store.pages =
      late_pages(a.store.pages, a.store.pages_stride, a.batch.sequences, a.batch.batch, late);
}

constexpr auto kVote = &pkv_backend::vote;

constexpr Mutant kMutants[] = {
    {"vote_ulp", [](pkv_backend& t) { t.vote.run = run_spoiled<kVote, raise_vote>; }},
    {"vote_bad_key", [](pkv_backend& t) { t.vote.run = run_spoiled<kVote, vote_for_bad_keys>; }},
    {"vote_behind_row", [](pkv_backend& t) { t.vote.run = run_spoiled<kVote, write_behind_row>; }},
    {"vote_behind_end", [](pkv_backend& t) { t.vote.run = run_spoiled<kVote, write_behind_all>; }},
    {"vote_in_front", [](pkv_backend& t) { t.vote.run = run_spoiled<kVote, write_in_front>; }},
    {"vote_writes_query", [](pkv_backend& t) { t.vote.run = run_spoiled<kVote, write_query>; }},
    {"vote_writes_store", [](pkv_backend& t) { t.vote.run = run_spoiled<kVote, write_store>; }},
    {"vote_differs_by_run",
     [](pkv_backend& t) { t.vote.run = run_spoiled<kVote, spoil_some_calls>; }},
    {"vote_sums_heads", [](pkv_backend& t) { t.vote.run = run_changed<kVote, sum_heads>; }},
    {"vote_rho_of_keys", [](pkv_backend& t) { t.vote.run = run_changed<kVote, count_keys>; }},
    {"vote_ignores_strides",
     [](pkv_backend& t) { t.vote.run = run_changed<kVote, forget_query_strides>; }},
    {"vote_uses_entries", [](pkv_backend& t) { t.vote.run = run_changed<kVote, use_entries>; }},
    {"vote_scratch_is_zero",
     [](pkv_backend& t) {
       t.vote.scratch_bytes = more_scratch;
       t.vote.run = count_in_scratch;
     }},
    {"vote_ignores_sets", [](pkv_backend& t) { t.vote.run = run_changed<kVote, ignore_sets>; }},
    {"vote_late_pages", [](pkv_backend& t) { t.vote.run = run_changed<kVote, turn_pages_late>; }},
    {"vote_refuses_late", [](pkv_backend& t) { t.vote.run = refuse_after_writing; }},
};

}  // namespace

std::span<const Mutant> vote_mutants() { return kMutants; }

}  // namespace pkv::mutants
