// The fused step: a task per row, or per team of rows that are one row of the store (several query
// tokens of a sequence); or rows cut into pieces where there are fewer rows than threads.
// docs/algorithm.md, sections 4 to 8.
#include <algorithm>

#include "backends/cpu/check_stages.h"
#include "backends/cpu/device.h"
#include "backends/cpu/stages.h"
#include "backends/cpu/step_pieces.h"
#include "backends/cpu/step_row.h"
#include "pariskv/pariskv_backend.hpp"

namespace pkv::cpu {
namespace {

// How a call's scratch is divided: one room per worker, the teams' first entries, then, with
// pieces, what belongs to rows.
struct Division {
  Cut cut;
  int64_t room_bytes;
  int64_t shared_bytes;
  int64_t rows;
  int64_t workers;

  int64_t teams_at() const { return workers * room_bytes; }
  int64_t shared_at() const { return teams_at() + round_up(rows * int64_t{sizeof(int32_t)}, 64); }
  int64_t bytes() const { return shared_at() + rows * shared_bytes; }
};

Division division_of(const Isa& isa, const pkv_step_args& args, int64_t workers) {
  Division d{};
  d.workers = workers;
  d.rows = int64_t{args.vote.batch.batch} * args.vote.codec.geometry->kv_heads;
  d.cut = cut_of(args, workers);
  Scratch room(nullptr);
  take_step_room(room, isa, args);
  d.room_bytes = room.bytes();
  if (d.cut.pieces > 1) {
    Scratch shared(nullptr);
    take_shared_row(shared, args, d.cut);
    d.shared_bytes = shared.bytes();
  }
  return d;
}

pkv_status supports(pkv_backend_device* device, const pkv_step_args* args) {
  const pkv_host* host = device->host;
  pkv_status status = check_vote(host, args->vote);
  if (status != PKV_OK) return status;
  status = check_select(host, args->select);
  if (status != PKV_OK) return status;
  status = check_rerank(host, args->rerank);
  if (status != PKV_OK || !has_attention(*args)) return status;
  return check_attend(host, args->attend, args->fetch.source_keys, args->fetch.source_values);
}

pkv_status scratch_bytes(pkv_backend_device* device, const pkv_step_args* args, int64_t* out) {
  const int64_t workers = device->pool.reserve_workers();
  *out = division_of(device->isa, *args, workers).bytes();
  return PKV_OK;
}

// One call of the slot.
class Step {
 public:
  Step(const pkv_backend_device& device, const pkv_step_args& args, void* scratch)
      : pool_(device.pool),
        isa_(device.isa),
        args_(args),
        layout_(make_layout(*args.vote.codec.geometry, args.vote.store.capacity)),
        division_(division_of(isa_, args, device.pool.workers())),
        scratch_(static_cast<std::byte*>(scratch)) {}

  pkv_status run() const { return division_.cut.pieces > 1 ? run_pieces() : run_teams(); }

 private:
  StepRow row(int64_t r) const { return step_row_of(args_, layout_, r); }

  StepRoom room(int32_t worker) const {
    Scratch own = worker_scratch(scratch_, worker, division_.room_bytes);
    return take_step_room(own, isa_, args_);
  }

  SharedRow shared(int64_t r) const {
    Scratch own(scratch_ + division_.shared_at() + r * division_.shared_bytes);
    return take_shared_row(own, args_, division_.cut);
  }

  // The first entries of the teams: runs of entries with the same sequence and length. Returns
  // their number.
  int32_t list_teams(int32_t* first) const {
    const pkv_batch& batch = args_.vote.batch;
    // Two tasks per worker balance.
    const int64_t most = std::clamp<int64_t>(division_.rows / (2 * division_.workers), 1, kTeam);
    int32_t teams = 0;
    for (int32_t i = 0; i < batch.batch; ++i) {
      const bool joins = i > 0 && i - first[teams - 1] < most &&
                         batch.sequences[i] == batch.sequences[i - 1] &&
                         batch.lengths[i] == batch.lengths[i - 1];
      if (!joins) first[teams++] = i;
    }
    return teams;
  }

  pkv_status run_teams() const {
    auto* first = reinterpret_cast<int32_t*>(scratch_ + division_.teams_at());
    const int32_t teams = list_teams(first);
    const int64_t kv_heads = args_.vote.codec.geometry->kv_heads;
    return pool_.parallel(teams * kv_heads, 1, [&](int64_t index, int32_t worker) {
      const int64_t team = index / kv_heads;
      const int64_t end = team + 1 < teams ? first[team + 1] : args_.vote.batch.batch;
      StepRow rows[kTeam];
      int32_t count = 0;
      for (int64_t i = first[team]; i < end; ++i) {
        rows[count++] = row(i * kv_heads + index % kv_heads);
      }
      StepRoom own = room(worker);
      run_rows(isa_, rows, count, own);
    });
  }

  pkv_status run_pieces() const {
    const Cut& cut = division_.cut;
    pkv_status status = pool_.parallel(division_.rows, 1, [this](int64_t r, int32_t worker) {
      start_shared_row(isa_, row(r), shared(r), room(worker));
    });
    if (status != PKV_OK) return status;
    status = pool_.parallel(division_.rows * cut.pieces, 1, [&](int64_t index, int32_t) {
      const int64_t r = index / cut.pieces;
      scan_piece(isa_, row(r), shared(r), cut, index % cut.pieces);
    });
    if (status != PKV_OK) return status;
    return pool_.parallel(division_.rows, 1, [&](int64_t r, int32_t worker) {
      finish_shared_row(isa_, row(r), shared(r), cut, room(worker));
    });
  }

  const Pool& pool_;
  const Isa& isa_;
  const pkv_step_args& args_;
  Layout layout_;
  Division division_;
  std::byte* scratch_;
};

pkv_status run(pkv_backend_device* device, pkv_backend_stream* /*stream*/,
               const pkv_step_args* args, void* scratch) {
  return backend::guard(device->host, [&] { return Step(*device, *args, scratch).run(); });
}

}  // namespace

pkv_step_slots step_slots() { return {supports, scratch_bytes, run}; }

}  // namespace pkv::cpu
