// What a plan books for its calls: names and sizes of all pieces of scratch.
#include <algorithm>
#include <optional>
#include <string_view>
#include <vector>

#include "core/base/checked.h"
#include "core/base/dtype.h"
#include "core/base/status.h"
#include "core/base/text.h"
#include "core/pipeline/run_stage.h"
#include "core/plan/plan.h"

namespace pkv {
namespace {

constexpr int64_t kDensePartTokens = 4096;  // dense parts are planned for at least this many

absl::StatusOr<int64_t> array_bytes(std::string_view what, std::initializer_list<Named> sizes) {
  const absl::StatusOr<int64_t> bytes = checked_product(what, sizes);
  if (bytes.ok()) return *bytes;
  return absl::ResourceExhaustedError(str_cat("scratch: ", to_std(bytes.status().message())));
}

// A tensor that says shape and dtype only: for supports and scratch_bytes.
class Planned {
 public:
  Planned(const Device& device, std::initializer_list<int64_t> shape) : shape_(shape) {
    tensor_.device_type = device.info().device_type;
    tensor_.device_id = device.info().device_id;
    tensor_.ndim = static_cast<int32_t>(shape_.size());
    tensor_.shape = shape_.data();
    tensor_.dtype = PKV_DTYPE_F32;
  }
  Planned(const Planned&) = delete;
  Planned& operator=(const Planned&) = delete;
  pkv_tensor of(pkv_dtype dtype) const {
    pkv_tensor tensor = tensor_;
    tensor.dtype = dtype;
    return tensor;
  }

 private:
  std::vector<int64_t> shape_;
  pkv_tensor tensor_{};
};

// The most scratch that any of several variants of a stage needs. A stage that refuses all of them
// refuses the plan, with its reason for the last.
class MostScratch {
 public:
  template <class Slots, class Args>
  void ask(const Device& device, std::string_view what, const Slots& slots, const Args& args) {
    const absl::StatusOr<int64_t> bytes = stage_scratch_bytes(device, what, slots, args);
    if (bytes.ok()) {
      most_ = std::max(most_, *bytes);
    } else {
      refusal_ = bytes.status();
    }
  }
  absl::StatusOr<int64_t> bytes() const {
    if (most_ < 0) return refusal_;
    return most_;
  }

 private:
  int64_t most_ = -1;
  absl::Status refusal_;
};

// The tensors of an attention in every combination of dtypes.
class PlannedAttention {
 public:
  PlannedAttention(const Plan& plan, int64_t part_tokens)
      : plan_(plan),
        queries_(plan.device(), {plan.batch(), plan.query_heads(), plan.geometry().head_dim}),
        output_(plan.device(), {plan.batch(), plan.query_heads(), plan.geometry().value_dim}),
        part_keys_(plan, part_tokens, plan.geometry().head_dim),
        part_values_(plan, part_tokens, plan.geometry().value_dim),
        row_keys_(plan, plan.options().k, plan.geometry().head_dim),
        row_values_(plan, plan.options().k, plan.geometry().value_dim) {}

  // ask(attend_args, row_keys, row_values) for each; the rows are those of k hits.
  template <class Ask>
  void for_each(Ask ask) const {
    pkv_attend_args args = plan_.attend_args();
    args.part_count = PKV_MAX_PARTS;
    for (const pkv_dtype query_type : kFloatTypes) {
      args.queries = queries_.of(query_type);
      for (const pkv_dtype row_type : kFloatTypes) {
        for (pkv_part& part : args.parts) {
          part.keys = part_keys_.of(row_type);
          part.values = part_values_.of(row_type);
        }
        for (const pkv_dtype output_type : kFloatTypes) {
          args.output = output_.of(output_type);
          ask(args, row_keys_.of(row_type), row_values_.of(row_type));
        }
      }
    }
  }

 private:
  struct Rows : Planned {
    Rows(const Plan& plan, int64_t tokens, int64_t width)
        : Planned(plan.device(), {plan.batch(), plan.geometry().kv_heads, tokens, width}) {}
  };
  const Plan& plan_;
  Planned queries_;
  Planned output_;
  Rows part_keys_;
  Rows part_values_;
  Rows row_keys_;
  Rows row_values_;
};

}  // namespace

absl::Status Plan::book_scratch() {
  // A fused call is worth having if it takes what the stages take; else they run one by one.
  is_fused_ = batch_ > 0 && device().backend().step.run != nullptr && fused_bytes(false).ok() &&
              (geometry().v_source == PKV_V_SOURCE_NONE || fused_bytes(true).ok());
  PKV_RETURN_IF_ERROR(book_retrieve());
  PKV_RETURN_IF_ERROR(book_halves());
  if (geometry().v_source == PKV_V_SOURCE_NONE) return absl::OkStatus();
  PKV_RETURN_IF_ERROR(book_attend());
  return book_step();
}

absl::Status Plan::book_lengths(ScratchLedger& ledger) const {
  if (are_neighbours_) return absl::OkStatus();
  return ledger.book(Piece::kLengths, batch_ * int64_t{sizeof(int64_t)});
}

absl::Status Plan::book_array(ScratchLedger& ledger, Piece piece, int64_t rows, int64_t entries,
                              int64_t entry_bytes) const {
  PKV_ASSIGN_OR_RETURN(const int64_t bytes,
                       array_bytes(kPieceNames[static_cast<std::size_t>(piece)],
                                   {{"rows", rows}, {"entries", entries}, {"bytes", entry_bytes}}));
  return ledger.book(piece, bytes);
}

// The most of any dtypes. A refusal of all of them is the status.
absl::StatusOr<int64_t> Plan::fused_bytes(bool attends) const {
  const Device& device = this->device();
  pkv_step_args args = step_args();
  MostScratch most;
  if (!attends) {
    const Planned queries(device, {batch_, query_heads_, geometry().head_dim});
    for (const pkv_dtype dtype : kFloatTypes) {
      args.vote.queries = args.rerank.queries = queries.of(dtype);
      most.ask(device, "retrieve", device.backend().step, args);
    }
    return most.bytes();
  }
  PlannedAttention(*this, std::max(max_tokens_, kDensePartTokens))
      .for_each(
          [&](const pkv_attend_args& attend, const pkv_tensor& keys, const pkv_tensor& values) {
            args.vote.queries = args.rerank.queries = attend.queries;
            args.attend = attend;
            if (options_.k > 0) {
              args.fetch.source_keys = keys;
              args.fetch.source_values = values;
            }
            most.ask(device, "step", device.backend().step, args);
          });
  return most.bytes();
}

absl::Status Plan::book_retrieve() {
  const int64_t rows = int64_t{batch_} * geometry().kv_heads;
  ScratchLedger& ledger = retrieve_scratch_;
  PKV_RETURN_IF_ERROR(book_lengths(ledger));
  if (!is_fused_) {
    PKV_RETURN_IF_ERROR(book_array(ledger, Piece::kVotes, rows, votes_stride_, sizeof(float)));
  }
  if (options_.tail == PKV_TAIL_DROP) {
    PKV_RETURN_IF_ERROR(book_array(ledger, Piece::kCandidates, rows, candidates_, sizeof(int32_t)));
    PKV_RETURN_IF_ERROR(book_array(ledger, Piece::kCandidateCounts, rows, 1, sizeof(int32_t)));
  }
  PKV_RETURN_IF_ERROR(book_array(ledger, Piece::kScores, rows, options_.k, sizeof(float)));
  if (batch_ == 0) return absl::OkStatus();
  if (is_fused_) {
    PKV_ASSIGN_OR_RETURN(const int64_t bytes, fused_bytes(false));
    return ledger.book_shared(Piece::kStage, bytes);
  }
  PKV_ASSIGN_OR_RETURN(const int64_t halves, halves_bytes());
  MostScratch select;
  select.ask(device(), "select", device().backend().select, select_args());
  PKV_ASSIGN_OR_RETURN(const int64_t between, select.bytes());
  return ledger.book_shared(Piece::kStage, std::max(halves, between));
}

// The most that vote or rerank need, of any dtypes.
absl::StatusOr<int64_t> Plan::halves_bytes() const {
  const Device& device = this->device();
  const Planned queries(device, {batch_, query_heads_, geometry().head_dim});
  MostScratch vote;
  MostScratch rerank;
  for (const pkv_dtype dtype : kFloatTypes) {
    pkv_vote_args vote_args = this->vote_args();
    vote_args.queries = queries.of(dtype);
    vote.ask(device, "vote", device.backend().vote, vote_args);
    pkv_rerank_args rerank_args = this->rerank_args();
    rerank_args.queries = queries.of(dtype);
    rerank.ask(device, "rerank", device.backend().rerank, rerank_args);
  }
  PKV_ASSIGN_OR_RETURN(const int64_t votes, vote.bytes());
  PKV_ASSIGN_OR_RETURN(const int64_t reranks, rerank.bytes());
  return std::max(votes, reranks);
}

// A backend whose fused call takes what its stages refuse has no halves; its plans are none the
// worse.
absl::Status Plan::book_halves() {
  if (batch_ == 0) return absl::OkStatus();
  const absl::StatusOr<int64_t> bytes = halves_bytes();
  halves_status_ = bytes.status();
  if (!bytes.ok()) return absl::OkStatus();
  const int64_t rows = int64_t{batch_} * geometry().kv_heads;
  PKV_RETURN_IF_ERROR(book_lengths(halves_scratch_));
  PKV_RETURN_IF_ERROR(book_array(halves_scratch_, Piece::kScores, rows, options_.k, sizeof(float)));
  return halves_scratch_.book_shared(Piece::kStage, *bytes);
}

// How long dense parts will be, and their dtypes, is not known yet: the most for any dtypes and
// parts as long as the zone. A longer part that needs more is refused when it comes.
absl::Status Plan::book_attend() {
  ScratchLedger& ledger = attend_scratch_;
  PKV_RETURN_IF_ERROR(book_lengths(ledger));
  PKV_RETURN_IF_ERROR(
      book_array(ledger, Piece::kPartLengths, PKV_MAX_PARTS, batch_, sizeof(int64_t)));
  if (batch_ == 0) return absl::OkStatus();
  const Device& device = this->device();
  MostScratch most;
  PlannedAttention(*this, std::max(max_tokens_, kDensePartTokens))
      .for_each([&](pkv_attend_args args, const pkv_tensor& keys, const pkv_tensor& values) {
        if (options_.k > 0) {
          args.row_keys = keys;
          args.row_values = values;
        }
        most.ask(device, "attend", device.backend().attend, args);
      });
  PKV_ASSIGN_OR_RETURN(const int64_t bytes, most.bytes());
  return ledger.book_shared(Piece::kStage, bytes);
}

// Hits that the caller does not want, and fetched rows unless they are read where they lie.
absl::Status Plan::book_step() {
  const int64_t rows = int64_t{batch_} * geometry().kv_heads;
  const int64_t heads = int64_t{batch_} * query_heads_;
  const int64_t k = options_.k;
  ScratchLedger& ledger = step_scratch_;
  const auto book = [&](Piece piece, int64_t count, int64_t entries, int64_t bytes = 4) {
    return book_array(ledger, piece, count, entries, bytes);
  };
  PKV_RETURN_IF_ERROR(book(Piece::kPositions, rows, k));
  PKV_RETURN_IF_ERROR(book(Piece::kCounts, rows, 1));
  PKV_RETURN_IF_ERROR(book(Piece::kScores, rows, k));
  PKV_RETURN_IF_ERROR(book(Piece::kCandidates, rows, candidates_));
  PKV_RETURN_IF_ERROR(book(Piece::kCandidateCounts, rows, 1));
  if (options_.tail != PKV_TAIL_DROP) {
    PKV_RETURN_IF_ERROR(book(Piece::kEstimates, heads, candidates_));
    PKV_RETURN_IF_ERROR(book(Piece::kRestLse, heads, 1));
    if (options_.tail != PKV_TAIL_MEAN) {
      PKV_RETURN_IF_ERROR(book(Piece::kSampleEstimates, heads, options_.tail_samples));
    }
  }
  if (!is_fused_) {
    PKV_RETURN_IF_ERROR(book(Piece::kRowKeys, rows * k, geometry().head_dim));
    return book(Piece::kRowValues, rows * k, geometry().value_dim);
  }
  PKV_RETURN_IF_ERROR(book_lengths(ledger));
  PKV_RETURN_IF_ERROR(book(Piece::kPartLengths, PKV_MAX_PARTS, batch_, sizeof(int64_t)));
  PKV_ASSIGN_OR_RETURN(const int64_t bytes, fused_bytes(true));
  return ledger.book_shared(Piece::kStage, bytes);
}

}  // namespace pkv
