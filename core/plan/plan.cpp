#include "core/plan/plan.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string_view>
#include <utility>

#include "core/base/checked.h"
#include "core/base/dtype.h"
#include "core/base/status.h"
#include "core/base/text.h"
#include "core/format/records.h"
#include "core/pipeline/checks.h"
#include "core/pipeline/run_stage.h"
#include "core/pipeline/stages.h"
#include "core/runtime/json_writer.h"

namespace pkv {
namespace {

constexpr int32_t kMaxBatch = 65535;
constexpr int64_t kVotesStep = 64;          // rows of votes begin at multiples of 256 bytes
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

template <class Value>
absl::Status compare(std::string_view option, Value config, Value codec) {
  if (config == codec) return absl::OkStatus();
  return absl::FailedPreconditionError(
      str_cat(option, ": of the config=", config, ", of the index's codec=", codec));
}

void write_scratch(std::string_view call, const ScratchLedger& ledger, JsonWriter& json) {
  json.key(call).open('{').field("bytes", ledger.bytes());
  for (std::size_t i = 0; i < kPieceNames.size(); ++i) {
    const int64_t bytes = ledger.bytes(static_cast<Piece>(i));
    if (bytes > 0) json.field(kPieceNames[i], bytes);
  }
  json.close('}');
}

}  // namespace

absl::StatusOr<std::unique_ptr<Plan>> Plan::create(std::shared_ptr<const Index> index,
                                                   const Config& config,
                                                   const pkv_plan_desc& desc) {
  std::unique_ptr<Plan> plan(new Plan(std::move(index), config));
  PKV_RETURN_IF_ERROR(plan->check_codec());
  PKV_ASSIGN_OR_RETURN(plan->options_, config.step_options());
  PKV_RETURN_IF_ERROR(plan->set_shape(desc));
  PKV_RETURN_IF_ERROR(plan->set_sequences(desc));
  PKV_RETURN_IF_ERROR(plan->create_buffers());
  PKV_RETURN_IF_ERROR(plan->book_retrieve());
  if (plan->geometry().v_source != PKV_V_SOURCE_NONE) PKV_RETURN_IF_ERROR(plan->book_attend());
  if (plan->owns_scratch_) {
    PKV_ASSIGN_OR_RETURN(
        plan->own_scratch_,
        Buffer::create(plan->index_->device(), PKV_MEMORY_DEVICE, plan->scratch_bytes()));
  }
  return plan;
}

// Every option that fixes what a record is, or how its parameters were fitted.
absl::Status Plan::check_codec() const {
  const pkv_geometry& codec = geometry();
  PKV_ASSIGN_OR_RETURN(const pkv_geometry config, config_.geometry(codec.kv_heads));
  PKV_RETURN_IF_ERROR(compare("head_dim", config.head_dim, codec.head_dim));
  PKV_RETURN_IF_ERROR(compare("value_dim", config.value_dim, codec.value_dim));
  PKV_RETURN_IF_ERROR(compare("v_source", config.v_source, codec.v_source));
  PKV_RETURN_IF_ERROR(compare("codec", config.codec, codec.codec));
  PKV_RETURN_IF_ERROR(compare("vote", config.vote, codec.vote));
  PKV_RETURN_IF_ERROR(compare("rounds", config.rounds, codec.rounds));
  if (config.sketch_bits != 0) {  // a tail that reads no sketch goes with any
    PKV_RETURN_IF_ERROR(
        compare("tail (bits of the sketch)", config.sketch_bits, codec.sketch_bits));
    PKV_RETURN_IF_ERROR(
        compare("tail (stride of the sketch)", config.sketch_stride, codec.sketch_stride));
  }
  PKV_RETURN_IF_ERROR(compare("value_norm", config.value_norm, codec.value_norm));
  PKV_RETURN_IF_ERROR(compare("seed", config.seed, codec.seed));
  const CodecOptions wanted = config_.codec_options();
  const CodecOptions& fitted = index_->codec()->options();
  const auto on_off = [](bool is_on) { return is_on ? "on" : "off"; };
  PKV_RETURN_IF_ERROR(compare<std::string>("center", on_off(wanted.center), on_off(fitted.center)));
  PKV_RETURN_IF_ERROR(
      compare<std::string>("balance", on_off(wanted.balance), on_off(fitted.balance)));
  const auto fit = [](bool is_picked) { return is_picked ? "picked" : "keys"; };
  return compare<std::string>("fit", fit(wanted.fit_picked), fit(fitted.fit_picked));
}

absl::Status Plan::set_shape(const pkv_plan_desc& desc) {
  PKV_RETURN_IF_ERROR(check_range("batch", desc.batch, 0, kMaxBatch));
  PKV_RETURN_IF_ERROR(check_query_heads(desc.query_heads, geometry().kv_heads));
  PKV_RETURN_IF_ERROR(check_range("owns_scratch", desc.owns_scratch, 0, 1));
  PKV_RETURN_IF_ERROR(check_range("max_tokens", desc.max_tokens, 0, index_->capacity()));
  batch_ = desc.batch;
  query_heads_ = desc.query_heads;
  owns_scratch_ = desc.owns_scratch != 0;
  max_tokens_ = desc.max_tokens == 0 ? index_->capacity() : desc.max_tokens;
  votes_stride_ = (max_tokens_ + kVotesStep - 1) / kVotesStep * kVotesStep;
  candidates_ = most_candidates(options_.rule, max_tokens_);
  return absl::OkStatus();
}

absl::Status Plan::set_sequences(const pkv_plan_desc& desc) {
  if (desc.sequences == nullptr) {
    PKV_RETURN_IF_ERROR(check_range("batch without sequences", desc.batch, 0, index_->sequences()));
  }
  std::vector<bool> is_taken(static_cast<std::size_t>(index_->sequences()));
  for (int32_t i = 0; i < batch_; ++i) {
    const int32_t sequence = desc.sequences == nullptr ? i : desc.sequences[i];
    PKV_RETURN_IF_ERROR(
        check_index(str_cat("sequences[", i, "]"), sequence, 0, int64_t{index_->sequences()} - 1));
    if (is_taken[static_cast<std::size_t>(sequence)]) {
      return absl::InvalidArgumentError(
          str_cat("sequences[", i, "]=", sequence, " occurs twice, accepted: all different"));
    }
    is_taken[static_cast<std::size_t>(sequence)] = true;
    are_neighbours_ = are_neighbours_ && sequence == (i == 0 ? sequence : sequences_.back() + 1);
    sequences_.push_back(sequence);
  }
  return absl::OkStatus();
}

absl::Status Plan::create_buffers() {
  if (are_neighbours_) return absl::OkStatus();
  const int64_t sequence_bytes = int64_t{batch_} * int64_t{sizeof(int32_t)};
  const int64_t bounds_at = (sequence_bytes + ScratchLedger::kAlignment - 1) /
                            ScratchLedger::kAlignment * ScratchLedger::kAlignment;
  const std::vector<int64_t> bounds(static_cast<std::size_t>(batch_), max_tokens_);
  const int64_t bound_bytes = int64_t{batch_} * int64_t{sizeof(int64_t)};
  PKV_ASSIGN_OR_RETURN(
      batch_buffer_, Buffer::create(index_->device(), PKV_MEMORY_DEVICE, bounds_at + bound_bytes));
  PKV_ASSIGN_OR_RETURN(const Stream stream, Stream::create(index_->device()));
  absl::Status copied = stream.copy(batch_buffer_.data(), sequences_.data(), sequence_bytes);
  if (copied.ok()) {
    copied = stream.copy(batch_buffer_.as<std::byte>() + bounds_at, bounds.data(), bound_bytes);
  }
  const absl::Status passed = stream.sync();
  return copied.ok() ? passed : copied;
}

const int64_t* Plan::length_bounds() const {
  if (are_neighbours_) return index_->device_lengths() + first_sequence();
  const int64_t bound_bytes = int64_t{batch_} * int64_t{sizeof(int64_t)};
  return reinterpret_cast<const int64_t*>(batch_buffer_.as<std::byte>() + batch_buffer_.bytes() -
                                          bound_bytes);
}

absl::Status Plan::book_retrieve() {
  const int64_t rows = int64_t{batch_} * geometry().kv_heads;
  ScratchLedger& ledger = retrieve_scratch_;
  if (!are_neighbours_) {
    PKV_RETURN_IF_ERROR(ledger.book(Piece::kLengths, batch_ * int64_t{sizeof(int64_t)}));
  }
  PKV_ASSIGN_OR_RETURN(const int64_t votes,
                       array_bytes("votes", {{"rows", rows},
                                             {"votes_stride", votes_stride_},
                                             {"bytes", int64_t{sizeof(float)}}}));
  PKV_RETURN_IF_ERROR(ledger.book(Piece::kVotes, votes));
  if (options_.tail == PKV_TAIL_DROP) {
    PKV_ASSIGN_OR_RETURN(const int64_t bytes,
                         array_bytes("candidates", {{"rows", rows},
                                                    {"candidates", candidates_},
                                                    {"bytes", int64_t{sizeof(int32_t)}}}));
    PKV_RETURN_IF_ERROR(ledger.book(Piece::kCandidates, bytes));
    PKV_RETURN_IF_ERROR(ledger.book(Piece::kCandidateCounts, rows * int64_t{sizeof(int32_t)}));
  }
  PKV_ASSIGN_OR_RETURN(
      const int64_t scores,
      array_bytes("scores",
                  {{"rows", rows}, {"k", options_.k}, {"bytes", int64_t{sizeof(float)}}}));
  PKV_RETURN_IF_ERROR(ledger.book(Piece::kScores, scores));
  if (batch_ == 0) return absl::OkStatus();

  const Device& device = this->device();
  const Planned queries(device, {batch_, query_heads_, geometry().head_dim});
  MostScratch vote;
  MostScratch select;
  MostScratch rerank;
  select.ask(device, "select", device.backend().select, select_args());
  for (const pkv_dtype dtype : kFloatTypes) {
    pkv_vote_args vote_args = this->vote_args();
    vote_args.queries = queries.of(dtype);
    vote.ask(device, "vote", device.backend().vote, vote_args);
    pkv_rerank_args rerank_args = this->rerank_args();
    rerank_args.queries = queries.of(dtype);
    rerank.ask(device, "rerank", device.backend().rerank, rerank_args);
  }
  for (const MostScratch* stage : {&vote, &select, &rerank}) {
    PKV_ASSIGN_OR_RETURN(const int64_t bytes, stage->bytes());
    PKV_RETURN_IF_ERROR(ledger.book_shared(Piece::kStage, bytes));
  }
  return absl::OkStatus();
}

// How long dense parts will be, and their dtypes, is not known yet: the most for any dtypes and
// parts as long as the zone. A longer part that needs more is refused when it comes.
absl::Status Plan::book_attend() {
  ScratchLedger& ledger = attend_scratch_;
  if (!are_neighbours_) {
    PKV_RETURN_IF_ERROR(ledger.book(Piece::kLengths, batch_ * int64_t{sizeof(int64_t)}));
  }
  PKV_RETURN_IF_ERROR(
      ledger.book(Piece::kPartLengths, PKV_MAX_PARTS * batch_ * int64_t{sizeof(int64_t)}));
  if (batch_ == 0) return absl::OkStatus();

  const Device& device = this->device();
  const pkv_geometry& g = geometry();
  const int64_t part_tokens = std::max(max_tokens_, kDensePartTokens);
  const Planned queries(device, {batch_, query_heads_, g.head_dim});
  const Planned part_keys(device, {batch_, g.kv_heads, part_tokens, g.head_dim});
  const Planned part_values(device, {batch_, g.kv_heads, part_tokens, g.value_dim});
  const Planned row_keys(device, {batch_, g.kv_heads, options_.k, g.head_dim});
  const Planned row_values(device, {batch_, g.kv_heads, options_.k, g.value_dim});
  const Planned output(device, {batch_, query_heads_, g.value_dim});
  pkv_attend_args args = attend_args();
  args.part_count = PKV_MAX_PARTS;
  MostScratch most;
  for (const pkv_dtype query_type : kFloatTypes) {
    args.queries = queries.of(query_type);
    for (const pkv_dtype row_type : kFloatTypes) {
      for (pkv_part& part : args.parts) {
        part.keys = part_keys.of(row_type);
        part.values = part_values.of(row_type);
      }
      if (options_.k > 0) {
        args.row_keys = row_keys.of(row_type);
        args.row_values = row_values.of(row_type);
      }
      for (const pkv_dtype output_type : kFloatTypes) {
        args.output = output.of(output_type);
        most.ask(device, "attend", device.backend().attend, args);
      }
    }
  }
  PKV_ASSIGN_OR_RETURN(const int64_t bytes, most.bytes());
  return ledger.book_shared(Piece::kStage, bytes);
}

int64_t Plan::scratch_bytes() const {
  return std::max(retrieve_scratch_.bytes(), attend_scratch_.bytes());
}

pkv_batch Plan::batch_args() const {
  pkv_batch batch{};
  batch.batch = batch_;
  batch.sequences =
      are_neighbours_ ? index_->identity() + first_sequence() : batch_buffer_.as<int32_t>();
  batch.max_length = max_tokens_;
  return batch;
}

pkv_vote_args Plan::vote_args() const {
  pkv_vote_args args{};
  args.struct_size = sizeof args;
  args.query_heads = query_heads_;
  args.vote_group = options_.vote_group;
  args.rho_of = options_.rho_of;
  args.codec = index_->codec()->params();
  args.batch = batch_args();
  args.store = index_->store();
  args.occupancy = index_->occupancy();
  args.votes_stride = votes_stride_;
  return args;
}

pkv_select_args Plan::select_args() const {
  pkv_select_args args{};
  args.struct_size = sizeof args;
  args.kv_heads = geometry().kv_heads;
  args.batch = batch_args();
  args.rule = options_.rule;
  args.votes_stride = votes_stride_;
  args.candidates_stride = candidates_;
  return args;
}

pkv_rerank_args Plan::rerank_args() const {
  pkv_rerank_args args{};
  args.struct_size = sizeof args;
  args.query_heads = query_heads_;
  args.rank = options_.rank;
  args.k = options_.k;
  args.k_min = options_.k_min;
  args.tail_samples = options_.tail_samples;
  args.weigh_norms = options_.weigh_norms ? 1 : 0;
  args.scale = options_.scale;
  args.share = options_.share;
  args.codec = index_->codec()->params();
  args.batch = batch_args();
  args.store = index_->store();
  args.candidates_stride = candidates_;
  return args;
}

pkv_fetch_args Plan::fetch_args() const {
  pkv_fetch_args args{};
  args.struct_size = sizeof args;
  args.kv_heads = geometry().kv_heads;
  args.batch = batch_args();
  args.k = options_.k;
  return args;
}

pkv_attend_args Plan::attend_args() const {
  pkv_attend_args args{};
  args.struct_size = sizeof args;
  args.query_heads = query_heads_;
  args.tail = options_.tail;
  args.tail_samples = options_.tail_samples;
  args.scale = options_.scale;
  args.k = options_.k;
  args.codec = index_->codec()->params();
  args.batch = batch_args();
  args.candidates_stride = candidates_;
  args.value_sums = index_->value_sums();
  args.good_counts = index_->good_counts();
  args.store = index_->store();
  return args;
}

absl::StatusOr<const int64_t*> Plan::lengths(const Stream& stream, int64_t* room) const {
  const int64_t* all = index_->device_lengths();
  if (are_neighbours_) return all + first_sequence();
  // One copy for each run of neighbours.
  for (std::size_t begin = 0; begin < sequences_.size();) {
    std::size_t end = begin + 1;
    while (end < sequences_.size() && sequences_[end] == sequences_[end - 1] + 1) ++end;
    PKV_RETURN_IF_ERROR(stream.copy(room + begin, all + sequences_[begin],
                                    static_cast<int64_t>((end - begin) * sizeof(int64_t))));
    begin = end;
  }
  return static_cast<const int64_t*>(room);
}

absl::StatusOr<void*> Plan::scratch(void* from_caller) const {
  if (owns_scratch_) {
    PKV_RETURN_IF_ERROR(check_absent("scratch", from_caller, "since the plan owns its scratch"));
    return own_scratch_.data();
  }
  PKV_RETURN_IF_ERROR(check_pointer("scratch", from_caller, scratch_bytes()));
  if (reinterpret_cast<uintptr_t>(from_caller) % ScratchLedger::kAlignment != 0) {
    return absl::InvalidArgumentError("scratch is not aligned, accepted: multiples of 256");
  }
  return from_caller;
}

absl::Status Plan::check_stream(const Stream& stream) const {
  if (stream.device() == index_->device()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "stream belongs to another device, accepted: one of the device of the plan's index");
}

absl::Status Plan::check_lengths() const {
  for (const int32_t sequence : sequences_) {
    const int64_t length = index_->length(sequence);
    if (length <= max_tokens_) continue;
    return absl::FailedPreconditionError(str_cat("sequence ", sequence, " holds ", length,
                                                 " tokens, the plan's max_tokens=", max_tokens_));
  }
  return absl::OkStatus();
}

absl::StatusOr<Plan::Busy> Plan::Busy::enter(const Plan& plan) {
  if (!plan.owns_scratch_) return Busy(nullptr);
  if (!plan.is_busy_.test_and_set(std::memory_order_acquire)) return Busy(&plan.is_busy_);
  return absl::AbortedError(
      "plan is busy: another thread works in the scratch that it owns (owns_scratch=1)");
}

Plan::Busy::~Busy() {
  if (flag_ != nullptr) flag_->clear(std::memory_order_release);
}

std::string Plan::describe() const {
  const pkv_geometry& g = geometry();
  JsonWriter json;
  json.open('{').key("shape").open('{');
  json.field("batch", batch_).field("query_heads", query_heads_).field("kv_heads", g.kv_heads);
  json.field("head_dim", g.head_dim).field("value_dim", g.value_dim);
  json.field("max_tokens", max_tokens_).field("k", options_.k).field("candidates", candidates_);
  json.close('}').key("options").open('{');
  for (const OptionInfo& option : option_table()) {
    const auto value = config_.get(option.name);
    if (value.ok()) json.field(option.name, std::string_view(**value));
  }
  json.close('}').key("stages").open('{');
  for (const std::string_view stage : {"vote", "select", "rerank", "fetch", "attend"}) {
    json.key(stage).open('{').field("backend", device().backend().name).close('}');
  }
  json.close('}').key("scratch").open('{');
  json.field("bytes", scratch_bytes()).field("owned", owns_scratch_);
  write_scratch("retrieve", retrieve_scratch_, json);
  write_scratch("attend", attend_scratch_, json);
  json.close('}').close('}');
  return json.text();
}

}  // namespace pkv
