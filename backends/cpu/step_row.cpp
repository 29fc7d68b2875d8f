#include "backends/cpu/step_row.h"

#include <algorithm>
#include <limits>

#include "core/format/candidates.h"

namespace pkv::cpu {
namespace {

// The candidates, where the caller wants them, or where they are.
const int32_t* write_candidates(const StepRow& row, const Survivors& survivors, int64_t count) {
  const pkv_select_args& a = row.args->select;
  if (a.candidate_counts != nullptr) a.candidate_counts[row.r] = static_cast<int32_t>(count);
  if (a.candidates == nullptr) return survivors.positions;
  int32_t* out = a.candidates + row.r * a.candidates_stride;
  std::copy_n(survivors.positions, count, out);
  std::fill(out + count, out + a.candidates_stride, -1);
  return out;
}

void write_votes(const StepRow& row, const VoteRow* votes) {
  const pkv_vote_args& a = row.args->vote;
  if (a.votes == nullptr) return;
  float* out = a.votes + row.r * a.votes_stride;
  if (votes != nullptr) {
    vote_range(*votes, 0, row.n, out);
  } else {
    std::fill_n(out, row.n, std::numeric_limits<float>::quiet_NaN());
  }
}

TailRow tail_row(const StepRow& row, const RerankRow& hits, const StepRoom& room) {
  const pkv_attend_args& a = row.args->attend;
  const int32_t dv = a.codec.geometry->value_dim;
  TailRow tail{};
  tail.i = row.i;
  tail.n = row.n;
  tail.kv_head = row.kv_head;
  tail.candidates = hits.candidates;
  tail.candidate_count = hits.candidate_count;
  tail.estimates = hits.estimates;
  tail.stride = hits.stride;
  tail.rest_lse = hits.rest_lse;
  tail.sample_estimates = hits.sample_estimates;
  tail.sample_places = hits.rest_lse != nullptr ? room.rerank.sample_places : nullptr;
  tail.places = room.places;
  tail.place_count = *hits.count;
  tail.value_sums = a.value_sums + row.store_row * dv;
  tail.good_count = a.good_counts[row.store_row];
  tail.records = row.records;
  return tail;
}

}  // namespace

bool has_attention(const pkv_step_args& args) { return args.attend.output.ndim != 0; }

StepRoom take_step_room(Scratch& scratch, const Isa& isa, const pkv_step_args& a) {
  StepRoom room{};
  const int64_t longest = a.select.batch.max_length;
  // Entries of one sequence, at most as many as there are, vote together.
  const int32_t voters = std::min(a.vote.batch.batch, kTeam);
  for (int32_t v = 0; v < voters; ++v) {
    room.voters[v] = {take_row_query(scratch, *a.vote.codec.geometry, a.vote.query_heads),
                      take_vote_tables(scratch, a.vote),
                      take_survivors(scratch, isa, longest,
                                     format::largest_candidate_count(a.select.rule, longest))};
  }
  room.rerank = take_rerank_room(scratch, isa, a.rerank);
  room.places = scratch.take<int32_t>(a.rerank.k);
  if (!has_attention(a)) return room;
  room.state = take_attend_state(scratch, isa, a.attend);
  room.tail = take_tail_room(scratch, a.attend);
  return room;
}

StepRow step_row_of(const pkv_step_args& args, const Layout& layout, int64_t r) {
  const int32_t kv_heads = args.vote.codec.geometry->kv_heads;
  StepRow row{};
  row.args = &args;
  row.r = r;
  row.i = r / kv_heads;
  row.kv_head = static_cast<int32_t>(r % kv_heads);
  row.sequence = args.vote.batch.sequences[row.i];
  row.store_row = row.sequence * kv_heads + row.kv_head;
  row.records = record_row(args.vote.store, layout, kv_heads, row.sequence, row.kv_head);
  row.n = args.vote.batch.lengths[row.i];
  row.wanted = format::candidate_count(args.select.rule, row.n);
  return row;
}

VoteRow vote_row_of(const Isa& isa, const StepRow& row, const VoteTables& tables) {
  return {&isa, row.records, tables, row.n};
}

void finish_bad_row(const StepRow& row, Voter& voter, StepRoom& room) {
  write_votes(row, nullptr);
  write_candidates(row, voter.survivors, 0);
  write_no_hits(row.args->rerank, rerank_row_of(row.args->rerank, room.rerank, row.r),
                voter.query.group);
  if (has_attention(*row.args)) write_empty(row.args->attend, row.i, row.kv_head);
}

void finish_row(const Isa& isa, const StepRow& row, Voter& voter, StepRoom& room) {
  const pkv_step_args& a = *row.args;
  const VoteRow votes = vote_row_of(isa, row, voter.tables);
  write_votes(row, &votes);
  RerankRow hits = rerank_row_of(a.rerank, room.rerank, row.r);
  hits.candidate_count = static_cast<int32_t>(voter.survivors.count);
  hits.candidates = write_candidates(row, voter.survivors, voter.survivors.count);
  hits.places = room.places;
  prepare_estimator(a.rerank.codec, voter.query, row.i, row.kv_head, row.records,
                    room.rerank.estimator);
  write_hits(a.rerank, hits, room.rerank);
  if (!has_attention(a)) {
    write_samples(a.rerank, hits, room.rerank);
    return;
  }
  FetchedRows fetched{};
  if (a.attend.k > 0) {
    fetched = {TokenRows(a.fetch.source_keys, a.fetch.key_pages, row.sequence, row.kv_head),
               TokenRows(a.fetch.source_values, a.fetch.value_pages, row.sequence, row.kv_head),
               hits.positions, *hits.count};
  }
  prefetch_rows(fetched);
  write_samples(a.rerank, hits, room.rerank);
  const bool has_tail = a.attend.tail != PKV_TAIL_DROP;
  const TailRow tail = has_tail ? tail_row(row, hits, room) : TailRow{};
  attend_row(a.attend, row.i, row.kv_head, voter.query, fetched, has_tail ? &tail : nullptr,
             room.tail, room.state);
}

bool start_row(const StepRow& row, Voter& voter) {
  const pkv_vote_args& a = row.args->vote;
  if (!prepare_query(a.codec, a.queries, row.i, row.kv_head, voter.query)) return false;
  fill_vote_tables(a, voter.query, row.store_row, voter.tables);
  return true;
}

void select_whole_row(const Isa& isa, const StepRow& row, Voter& voter) {
  const Search search = {vote_row_of(isa, row, voter.tables), row.wanted, &voter.survivors};
  select_rows(&search, 1);
}

void run_rows(const Isa& isa, const StepRow* rows, int32_t count, StepRoom& room) {
  Search searches[kTeam];
  bool is_good[kTeam];
  int32_t good = 0;
  for (int32_t i = 0; i < count; ++i) {
    Voter& voter = room.voters[i];
    is_good[i] = start_row(rows[i], voter);
    if (!is_good[i]) continue;
    searches[good++] = {vote_row_of(isa, rows[i], voter.tables), rows[i].wanted, &voter.survivors};
  }
  if (good > 0) select_rows(searches, good);
  for (int32_t i = 0; i < count; ++i) {
    if (is_good[i]) {
      finish_row(isa, rows[i], room.voters[i], room);
    } else {
      finish_bad_row(rows[i], room.voters[i], room);
    }
  }
}

}  // namespace pkv::cpu
