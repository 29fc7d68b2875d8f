// Plan: shape, options and scratch of a decoding step, checked and sized once.
// Not here: the step itself (core/pipeline/step.h), which takes a plan and launches.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/index/index.h"
#include "core/plan/config.h"
#include "core/plan/scratch.h"
#include "core/runtime/buffer.h"
#include "core/runtime/stream.h"
#include "pariskv/pariskv.h"
#include "pariskv/pariskv_backend.h"

namespace pkv {

class Plan {
 public:
  static absl::StatusOr<std::unique_ptr<Plan>> create(std::shared_ptr<const Index> index,
                                                      const Config& config,
                                                      const pkv_plan_desc& desc);

  const Index& index() const { return *index_; }
  const Device& device() const { return *index_->device(); }
  const pkv_geometry& geometry() const { return index_->geometry(); }
  const StepOptions& options() const { return options_; }
  int32_t batch() const { return batch_; }
  int32_t query_heads() const { return query_heads_; }
  std::span<const int32_t> sequences() const { return sequences_; }  // [b] host
  int64_t max_tokens() const { return max_tokens_; }
  int64_t candidates() const { return candidates_; }      // c: stride of candidates, estimates
  int64_t votes_stride() const { return votes_stride_; }  // >= max_tokens
  bool owns_scratch() const { return owns_scratch_; }
  int64_t scratch_bytes() const;
  const ScratchLedger& retrieve_scratch() const { return retrieve_scratch_; }
  // Of vote and rerank one by one; the status says why the backend has not got them.
  const ScratchLedger& halves_scratch() const { return halves_scratch_; }
  const absl::Status& halves_status() const { return halves_status_; }
  const ScratchLedger& attend_scratch() const { return attend_scratch_; }
  const ScratchLedger& step_scratch() const { return step_scratch_; }
  // Where the pieces of step_scratch() lie: beside those of the other calls, which the step makes,
  // unless the backend does all in one.
  void* step_memory(void* memory) const;
  // Whether the backend runs a step, and a retrieve, in one call.
  bool is_fused() const { return is_fused_; }
  // JSON, as in pkv_plan_describe.
  std::string describe() const;

  // Arguments of the stages as far as they are fixed: sizes, options, codec, store. Pointers to
  // what a call brings, and tensors, are for the caller to fill in.
  pkv_vote_args vote_args() const;
  pkv_select_args select_args() const;
  pkv_rerank_args rerank_args() const;
  pkv_fetch_args fetch_args() const;
  pkv_attend_args attend_args() const;
  pkv_step_args step_args() const;  // without attention: attend.output.ndim = 0

  // The lengths of the batch on the device: the index's own where the sequences are neighbours,
  // else gathered into `room` ([b], from the ledger) in stream order.
  absl::StatusOr<const int64_t*> lengths(const Stream& stream, int64_t* room) const;
  // The same without room: max_tokens for each entry where they would have to be gathered.
  const int64_t* length_bounds() const;

  // The memory that a call works in: the plan's own or the caller's. INVALID_ARGUMENT: NULL, not
  // aligned, or given though the plan owns it.
  absl::StatusOr<void*> scratch(void* from_caller) const;
  absl::Status check_stream(const Stream& stream) const;
  // FAILED_PRECONDITION: a sequence has outgrown max_tokens.
  absl::Status check_lengths() const;

  // Held while a call enqueues work in the plan's own scratch. ABORTED: another thread has it.
  class Busy {
   public:
    static absl::StatusOr<Busy> enter(const Plan& plan);
    ~Busy();
    Busy(Busy&& other) noexcept : flag_(std::exchange(other.flag_, nullptr)) {}
    Busy& operator=(Busy&&) = delete;

   private:
    explicit Busy(std::atomic_flag* flag) : flag_(flag) {}
    std::atomic_flag* flag_;  // NULL: the caller's scratch, nothing to hold
  };

 private:
  Plan(std::shared_ptr<const Index> index, const Config& config)
      : index_(std::move(index)), config_(config) {}

  absl::Status check_codec() const;
  absl::Status set_shape(const pkv_plan_desc& desc);
  absl::Status set_sequences(const pkv_plan_desc& desc);
  // plan_scratch.cpp
  absl::Status book_scratch();
  absl::Status book_retrieve();
  absl::Status book_halves();
  absl::Status book_attend();
  absl::Status book_step();
  absl::Status book_lengths(ScratchLedger& ledger) const;
  absl::Status book_array(ScratchLedger& ledger, Piece piece, int64_t rows, int64_t entries,
                          int64_t entry_bytes) const;
  absl::StatusOr<int64_t> fused_bytes(bool attends) const;
  absl::StatusOr<int64_t> halves_bytes() const;
  absl::Status create_buffers();
  pkv_batch batch_args() const;
  int32_t first_sequence() const { return sequences_.empty() ? 0 : sequences_.front(); }

  std::shared_ptr<const Index> index_;
  Config config_;
  StepOptions options_{};
  int32_t batch_ = 0;
  int32_t query_heads_ = 0;
  std::vector<int32_t> sequences_;
  bool are_neighbours_ = true;  // sequences_ ascend by 1
  int64_t max_tokens_ = 0;
  int64_t candidates_ = 0;
  int64_t votes_stride_ = 0;
  bool owns_scratch_ = false;
  ScratchLedger retrieve_scratch_;
  ScratchLedger halves_scratch_;
  absl::Status halves_status_;
  ScratchLedger attend_scratch_;
  ScratchLedger step_scratch_;
  bool is_fused_ = false;
  Buffer own_scratch_;
  Buffer batch_buffer_;  // unless are_neighbours_: sequences [b] int32, then max_tokens [b] int64
  mutable std::atomic_flag is_busy_ = ATOMIC_FLAG_INIT;
};

}  // namespace pkv
