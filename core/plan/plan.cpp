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
#include "core/format/candidates.h"
#include "core/format/records.h"
#include "core/pipeline/checks.h"
#include "core/pipeline/run_stage.h"
#include "core/runtime/json_writer.h"

namespace pkv {
namespace {

constexpr int32_t kMaxBatch = 65535;

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
  PKV_RETURN_IF_ERROR(plan->book_scratch());
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
  votes_stride_ = pkv::votes_stride(max_tokens_);
  candidates_ = format::largest_candidate_count(options_.rule, max_tokens_);
  return absl::OkStatus();
}

absl::Status Plan::set_sequences(const pkv_plan_desc& desc) {
  if (desc.sequences == nullptr) {
    PKV_RETURN_IF_ERROR(check_range("batch without sequences", desc.batch, 0, index_->sequences()));
  }
  for (int32_t i = 0; i < batch_; ++i) {
    const int32_t sequence = desc.sequences == nullptr ? i : desc.sequences[i];
    PKV_RETURN_IF_ERROR(
        check_index(str_cat("sequences[", i, "]"), sequence, 0, int64_t{index_->sequences()} - 1));
    are_neighbours_ = are_neighbours_ && sequence == (i == 0 ? sequence : sequences_.back() + 1);
    sequences_.push_back(sequence);
  }
  return absl::OkStatus();
}

absl::Status Plan::create_buffers() {
  if (are_neighbours_) return absl::OkStatus();
  const int64_t sequence_bytes = int64_t{batch_} * int64_t{sizeof(int32_t)};
  const int64_t bounds_at = padded(sequence_bytes);
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

// One call at a time: retrieve, attend and a fused step lie on top of each other. A step of parts
// makes the others in turn, so what passes between them lies beside.
int64_t Plan::scratch_bytes() const {
  const int64_t calls = std::max(retrieve_scratch_.bytes(), attend_scratch_.bytes());
  const int64_t step =
      is_fused_ ? std::max(calls, step_scratch_.bytes()) : calls + step_scratch_.bytes();
  return std::max(step, halves_scratch_.bytes());
}

void* Plan::step_memory(void* memory) const {
  if (is_fused_) return memory;
  return static_cast<std::byte*>(memory) +
         std::max(retrieve_scratch_.bytes(), attend_scratch_.bytes());
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
  args.soft_cap = options_.soft_cap;
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
  args.soft_cap = options_.soft_cap;
  args.k = options_.k;
  args.codec = index_->codec()->params();
  args.batch = batch_args();
  args.candidates_stride = candidates_;
  args.value_sums = index_->value_sums();
  args.good_counts = index_->good_counts();
  args.store = index_->store();
  return args;
}

pkv_step_args Plan::step_args() const {
  pkv_step_args args{};
  args.struct_size = sizeof args;
  args.vote = vote_args();
  args.select = select_args();
  args.rerank = rerank_args();
  args.fetch = fetch_args();
  args.attend = attend_args();
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
  if (reinterpret_cast<uintptr_t>(from_caller) % kAlignment != 0) {
    return absl::InvalidArgumentError("scratch is not aligned, accepted: multiples of 256");
  }
  return from_caller;
}

absl::Status Plan::check_stream(const Stream& stream) const {
  PKV_RETURN_IF_ERROR(stream.check_device(index_->device(), "of the plan's index"));
  return index_->check_whole();
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
  json.close('}').field("fused", is_fused_).key("scratch").open('{');
  json.field("bytes", scratch_bytes()).field("owned", owns_scratch_);
  write_scratch("retrieve", retrieve_scratch_, json);
  write_scratch("halves", halves_scratch_, json);
  write_scratch("attend", attend_scratch_, json);
  write_scratch("step", step_scratch_, json);
  json.close('}').close('}');
  return json.text();
}

}  // namespace pkv
