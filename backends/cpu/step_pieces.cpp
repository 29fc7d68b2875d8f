#include "backends/cpu/step_pieces.h"
#include "core/format/candidates.h"

#include <algorithm>
#include <limits>

namespace pkv::cpu {
namespace {

constexpr int64_t kPieceAtLeast = 16384;  // keys that are worth a task
constexpr int64_t kMostPieces = 64;
constexpr int64_t kSlack = 16;  // room behind a list for a whole vector

// Keys [begin, end) of a piece.
struct Range {
  int64_t begin;
  int64_t end;
};

Range range_of(int64_t n, const Cut& cut, int64_t piece) {
  const int64_t keys = round_up((n + cut.pieces - 1) / cut.pieces, kBlockKeys);
  return {std::min(n, piece * keys), std::min(n, (piece + 1) * keys)};
}

// The pieces' survivors one after the other; false if they may lack one of the best.
bool gather_pieces(const StepRow& row, const SharedRow& shared, const Cut& cut,
                   Survivors& survivors) {
  reset(survivors, row.wanted, *shared.threshold);
  int64_t found = 0;
  for (int64_t piece = 0; piece < cut.pieces; ++piece) {
    const int64_t count = shared.counts[piece];
    if (count < 0) return false;
    found += count;
    if (survivors.count + count > survivors.capacity) keep_best(survivors);
    const int64_t begin = piece * (cut.room + kSlack);
    std::copy_n(shared.values + begin, count, survivors.values + survivors.count);
    std::copy_n(shared.positions + begin, count, survivors.positions + survivors.count);
    survivors.count += count;
  }
  if (found < row.wanted) return false;
  keep_best(survivors);
  return true;
}

}  // namespace

Cut cut_of(const pkv_step_args& args, int64_t workers) {
  const pkv_batch& batch = args.vote.batch;
  const int64_t rows = int64_t{batch.batch} * args.vote.codec.geometry->kv_heads;
  const int64_t wanted = format::largest_candidate_count(args.select.rule, batch.max_length);
  if (rows == 0 || rows >= 2 * workers || wanted == 0) return {1, 0};
  const int64_t pieces =
      std::min({(2 * workers + rows - 1) / rows, kMostPieces, batch.max_length / kPieceAtLeast});
  if (pieces < 2) return {1, 0};
  // About a share each, four times as many where keys come in clusters; never so many that a list
  // of four times the wanted ones has no room for one more piece.
  return {pieces, std::min(3 * wanted, 8 * wanted / pieces + 1024) + kBlockKeys};
}

SharedRow take_shared_row(Scratch& scratch, const pkv_step_args& args, const Cut& cut) {
  SharedRow row{};
  row.query = take_row_query(scratch, *args.vote.codec.geometry, args.vote.query_heads);
  row.tables = take_vote_tables(scratch, args.vote);
  row.values = scratch.take<float>(cut.pieces * (cut.room + kSlack));
  row.positions = scratch.take<int32_t>(cut.pieces * (cut.room + kSlack));
  row.counts = scratch.take<int64_t>(cut.pieces);
  row.is_good = scratch.take<bool>(1);
  row.threshold = scratch.take<float>(1);
  return row;
}

void start_shared_row(const Isa& isa, const StepRow& row, const SharedRow& shared, StepRoom room) {
  Voter& voter = room.voters[0];
  voter.query = shared.query;
  voter.tables = shared.tables;
  *shared.is_good = start_row(row, voter);
  if (!*shared.is_good) return;
  *shared.threshold =
      guess_threshold(vote_row_of(isa, row, voter.tables), row.wanted, voter.survivors);
}

void scan_piece(const Isa& isa, const StepRow& row, const SharedRow& shared, const Cut& cut,
                int64_t piece) {
  constexpr float kNoGuess = -std::numeric_limits<float>::infinity();
  shared.counts[piece] = 0;
  // Without a threshold the row is selected as a whole, later.
  if (!*shared.is_good || *shared.threshold == kNoGuess) return;
  Survivors survivors{};
  survivors.isa = &isa;
  survivors.values = shared.values + piece * (cut.room + kSlack);
  survivors.positions = shared.positions + piece * (cut.room + kSlack);
  survivors.capacity = cut.room;
  reset(survivors, std::numeric_limits<int32_t>::max(), *shared.threshold);
  const Range range = range_of(row.n, cut, piece);
  const Search search = {vote_row_of(isa, row, shared.tables), row.wanted, &survivors};
  scan_range(&search, 1, range.begin, range.end);
  shared.counts[piece] = survivors.is_full ? -1 : survivors.count;
}

void finish_shared_row(const Isa& isa, const StepRow& row, const SharedRow& shared, const Cut& cut,
                       StepRoom room) {
  Voter& voter = room.voters[0];
  voter.query = shared.query;
  voter.tables = shared.tables;
  if (!*shared.is_good) {
    finish_bad_row(row, voter, room);
    return;
  }
  if (!gather_pieces(row, shared, cut, voter.survivors)) select_whole_row(isa, row, voter);
  finish_row(isa, row, voter, room);
}

}  // namespace pkv::cpu
