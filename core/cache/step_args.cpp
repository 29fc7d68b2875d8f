#include "core/cache/step_args.h"

#include <algorithm>
#include <string_view>

#include "core/base/status.h"
#include "core/base/text.h"
#include "core/format/candidates.h"
#include "core/pipeline/run_stage.h"

namespace pkv {
StepArgs::StepArgs(const CacheShape& shape, const Layer& layer, const StepCall& call,
                   const StepExtents& extents)
    : shape_(shape),
      layer_(layer),
      call_(call),
      extents_(extents),
      has_zone_(layer.is_sparse() && !call.is_exact &&
                (extents.keys > 0 || call.hits != nullptr || call.output == nullptr)),
      sink_keys_(shape, call.tokens, extents.sink, shape.geometry.head_dim),
      sink_values_(shape, call.tokens, extents.sink, shape.geometry.value_dim),
      row_keys_(shape, call.tokens, extents.rows, shape.geometry.head_dim),
      row_values_(shape, call.tokens, extents.rows, shape.geometry.value_dim),
      zone_keys_(shape, shape.desc.sequences, extents.keys, shape.geometry.head_dim),
      zone_values_(shape, shape.desc.sequences, extents.keys, shape.geometry.value_dim),
      hit_keys_(shape, call.tokens, shape.step.k, shape.geometry.head_dim),
      hit_values_(shape, call.tokens, shape.step.k, shape.geometry.value_dim) {}

absl::Status StepArgs::plan() {
  const int64_t rows = call_.tokens * shape_.geometry.kv_heads;
  batch_.batch = static_cast<int32_t>(call_.tokens);
  batch_.max_length = std::max<int64_t>(extents_.keys, 1);
  candidates_ = format::largest_candidate_count(shape_.step.rule, batch_.max_length);
  stride_ = candidates_;
  if (call_.hits != nullptr &&
      (call_.hits->candidates != nullptr || call_.hits->estimates != nullptr)) {
    if (call_.hits->candidates_stride < candidates_) {
      return absl::InvalidArgumentError(
          str_cat("hits.candidates_stride=", call_.hits->candidates_stride, ", accepted: at least ",
                  candidates_));
    }
    stride_ = call_.hits->candidates_stride;
  }
  votes_stride_ = votes_stride(batch_.max_length);
  if (has_zone_) fill_zone();
  if (call_.output != nullptr) fill_attend();
  return book(rows);
}

absl::Status StepArgs::run(const Stream& stream, const StepNumbers& numbers, void* memory,
                           const float* sink_logits) {
  batch_.sequences = numbers.sequences;
  batch_.lengths = numbers.lengths;
  for (pkv_batch* batch : {&args_.vote.batch, &args_.select.batch, &args_.rerank.batch,
                           &args_.fetch.batch, &args_.attend.batch}) {
    *batch = batch_;
  }
  for (pkv_codec_params* codec : {&args_.vote.codec, &args_.rerank.codec, &args_.attend.codec}) {
    codec->set_of = numbers.sets;
  }
  args_.attend.sink_logits = sink_logits;
  if (call_.output != nullptr) place_parts(numbers);
  if (has_zone_) place_hits(memory);
  const Device& device = *shape_.device;
  const pkv_backend& backend = device.backend();
  void* stage = ledger_.get<void>(memory, Piece::kStage);
  if (is_fused_) {
    return device.call("step", backend.step.run, stream.handle(), &args_, stage);
  }
  if (has_zone_) {
    args_.vote.votes = ledger_.get<float>(memory, Piece::kVotes);
    args_.select.votes = args_.vote.votes;
    PKV_RETURN_IF_ERROR(device.call("vote", backend.vote.run, stream.handle(), &args_.vote, stage));
    PKV_RETURN_IF_ERROR(
        device.call("select", backend.select.run, stream.handle(), &args_.select, stage));
    PKV_RETURN_IF_ERROR(
        device.call("rerank", backend.rerank.run, stream.handle(), &args_.rerank, stage));
  }
  if (call_.output == nullptr) return absl::OkStatus();
  if (fetches_) {
    hit_keys_.put(ledger_.get<void>(memory, Piece::kRowKeys));
    args_.fetch.keys = args_.attend.row_keys = hit_keys_.tensor;
    hit_values_.put(ledger_.get<void>(memory, Piece::kRowValues));
    args_.fetch.values = args_.attend.row_values = hit_values_.tensor;
    PKV_RETURN_IF_ERROR(
        device.call("fetch", backend.fetch.run, stream.handle(), &args_.fetch, nullptr));
  }
  return device.call("attend", backend.attend.run, stream.handle(), &args_.attend, stage);
}

void StepArgs::fill_zone() {
  const StepOptions& options = shape_.step;
  pkv_vote_args& vote = args_.vote;
  args_.struct_size = sizeof args_;
  vote.struct_size = sizeof vote;
  vote.query_heads = shape_.desc.query_heads;
  vote.vote_group = options.vote_group;
  vote.rho_of = options.rho_of;
  vote.codec = layer_.codec();
  vote.batch = batch_;
  vote.queries = call_.query->tensor();
  vote.store = layer_.store();
  vote.occupancy = layer_.occupancy();
  vote.votes_stride = votes_stride_;
  pkv_select_args& select = args_.select;
  select.struct_size = sizeof select;
  select.kv_heads = shape_.geometry.kv_heads;
  select.batch = batch_;
  select.rule = options.rule;
  select.votes_stride = votes_stride_;
  select.candidates_stride = stride_;
  pkv_rerank_args& rerank = args_.rerank;
  rerank.struct_size = sizeof rerank;
  rerank.query_heads = shape_.desc.query_heads;
  rerank.rank = options.rank;
  rerank.k = options.k;
  rerank.k_min = options.k_min;
  rerank.tail_samples = options.tail_samples;
  rerank.weigh_norms = options.weigh_norms ? 1 : 0;
  rerank.scale = options.scale;
  rerank.share = options.share;
  rerank.soft_cap = shape_.desc.soft_cap;
  rerank.codec = vote.codec;
  rerank.batch = batch_;
  rerank.queries = vote.queries;
  rerank.store = vote.store;
  rerank.candidates_stride = stride_;
  if (call_.output == nullptr || options.k == 0) return;
  pkv_fetch_args& fetch = args_.fetch;
  fetch.struct_size = sizeof fetch;
  fetch.kv_heads = shape_.geometry.kv_heads;
  fetch.batch = batch_;
  fetch.k = options.k;
  fetch.source_keys = zone_keys_.tensor;
  fetch.source_values = zone_values_.tensor;
  fetch.key_pages = layer_.keys();
  fetch.value_pages = layer_.values();
  if (layer_.has_pool()) {  // hits count from the zone's begin, the table from the sequence's
    const int64_t pages = shape_.desc.sink / fetch.key_pages.page_tokens;
    fetch.key_pages.table += pages;
    fetch.value_pages.table += pages;
  }
  fetches_ = true;
}

void StepArgs::fill_attend() {
  pkv_attend_args& attend = args_.attend;
  attend.struct_size = sizeof attend;
  attend.query_heads = shape_.desc.query_heads;
  attend.scale = shape_.step.scale;
  attend.soft_cap = shape_.desc.soft_cap;
  attend.codec = layer_.codec();
  attend.batch = batch_;
  attend.queries = call_.query->tensor();
  attend.output = call_.output->tensor();
  attend.lse = call_.lse;
  attend.tail = PKV_TAIL_DROP;
  if (has_zone_) {
    attend.tail = shape_.step.tail;
    attend.k = shape_.step.k;
    attend.tail_samples = shape_.step.tail_samples;
    attend.candidates_stride = stride_;
    attend.value_sums = layer_.value_sums();
    attend.good_counts = layer_.good_counts();
    attend.store = layer_.store();
  }
  const auto add = [&](const PagedTensor& keys, const PagedTensor& values,
                       const pkv_pages& key_pages, const pkv_pages& value_pages) {
    if (keys.shape[2] == 0) return;
    pkv_part& part = attend.parts[attend.part_count++];
    part.keys = keys.tensor;
    part.values = values.tensor;
    part.key_pages = key_pages;
    part.value_pages = value_pages;
  };
  if (layer_.has_pool()) {
    add(sink_keys_, sink_values_, layer_.keys(), layer_.values());
  } else {
    add(sink_keys_, sink_values_, layer_.sink_keys(), layer_.sink_values());
  }
  add(row_keys_, row_values_, layer_.near_keys(), layer_.near_values());
}

absl::Status StepArgs::book(int64_t rows) {
  const Device& device = *shape_.device;
  const pkv_backend& backend = device.backend();
  const int64_t k = shape_.step.k;
  const int64_t heads = call_.tokens * shape_.desc.query_heads;
  if (layer_.is_on_device()) {
    PKV_RETURN_IF_ERROR(ledger_.book(Piece::kNumbers, StepNumbers::bytes(call_.tokens)));
  }
  is_fused_ = has_zone_ && backend.step.run != nullptr &&
              device.call("step", backend.step.supports, &args_).ok();
  if (has_zone_) {
    const auto piece = [&](Piece name, int64_t count, int64_t bytes) {
      return ledger_.book(name, count * bytes);
    };
    PKV_RETURN_IF_ERROR(piece(Piece::kPositions, rows * k, 4));
    PKV_RETURN_IF_ERROR(piece(Piece::kScores, rows * k, 4));
    PKV_RETURN_IF_ERROR(piece(Piece::kCounts, rows, 4));
    PKV_RETURN_IF_ERROR(piece(Piece::kCandidates, rows * stride_, 4));
    PKV_RETURN_IF_ERROR(piece(Piece::kCandidateCounts, rows, 4));
    if (call_.output != nullptr && shape_.step.tail != PKV_TAIL_DROP) {
      PKV_RETURN_IF_ERROR(piece(Piece::kEstimates, heads * stride_, 4));
      PKV_RETURN_IF_ERROR(piece(Piece::kRestLse, heads, 4));
      if (shape_.step.tail != PKV_TAIL_MEAN) {
        PKV_RETURN_IF_ERROR(piece(Piece::kSampleEstimates, heads * shape_.step.tail_samples, 4));
      }
    }
    if (!is_fused_) {
      PKV_RETURN_IF_ERROR(piece(Piece::kVotes, rows * votes_stride_, 4));
      if (fetches_) {
        PKV_RETURN_IF_ERROR(
            piece(Piece::kRowKeys, rows * k * shape_.geometry.head_dim, shape_.element_bytes));
        PKV_RETURN_IF_ERROR(
            piece(Piece::kRowValues, rows * k * shape_.geometry.value_dim, shape_.element_bytes));
      }
    }
  }
  const auto share = [&](std::string_view what, const auto& slots, const auto& args) {
    const absl::StatusOr<int64_t> bytes = stage_scratch_bytes(device, what, slots, args);
    return bytes.ok() ? ledger_.book_shared(Piece::kStage, *bytes) : bytes.status();
  };
  if (is_fused_) return share("step", backend.step, args_);
  if (has_zone_) {
    PKV_RETURN_IF_ERROR(share("vote", backend.vote, args_.vote));
    PKV_RETURN_IF_ERROR(share("select", backend.select, args_.select));
    PKV_RETURN_IF_ERROR(share("rerank", backend.rerank, args_.rerank));
  }
  if (call_.output == nullptr) return absl::OkStatus();
  pkv_attend_args attend = args_.attend;
  if (fetches_) {
    attend.row_keys = hit_keys_.tensor;
    attend.row_values = hit_values_.tensor;
  }
  return share("attend", backend.attend, attend);
}

void StepArgs::place_parts(const StepNumbers& numbers) {
  int32_t part = 0;
  if (sink_keys_.shape[2] > 0) {
    args_.attend.parts[part].starts = numbers.sink_starts;
    args_.attend.parts[part++].lengths = numbers.sink_lengths;
  }
  if (row_keys_.shape[2] > 0) {
    args_.attend.parts[part].starts = numbers.row_starts;
    args_.attend.parts[part].lengths = numbers.row_lengths;
  }
}

// The caller's arrays, or scratch.
void StepArgs::place_hits(void* memory) {
  const pkv_cache_hits none{};
  const pkv_cache_hits& given = call_.hits != nullptr ? *call_.hits : none;
  pkv_rerank_args& rerank = args_.rerank;
  rerank.positions = given.positions;
  rerank.scores = given.scores;
  rerank.counts = given.counts;
  rerank.estimates = given.estimates;
  int32_t* candidates = given.candidates;
  int32_t* candidate_counts = given.candidate_counts;
  ledger_.supply(memory, Piece::kPositions, rerank.positions);
  ledger_.supply(memory, Piece::kScores, rerank.scores);
  ledger_.supply(memory, Piece::kCounts, rerank.counts);
  ledger_.supply(memory, Piece::kEstimates, rerank.estimates);
  ledger_.supply(memory, Piece::kRestLse, rerank.rest_lse);
  ledger_.supply(memory, Piece::kSampleEstimates, rerank.sample_estimates);
  ledger_.supply(memory, Piece::kCandidates, candidates);
  ledger_.supply(memory, Piece::kCandidateCounts, candidate_counts);
  args_.select.candidates = candidates;
  args_.select.candidate_counts = candidate_counts;
  rerank.candidates = candidates;
  rerank.candidate_counts = candidate_counts;
  args_.fetch.positions = rerank.positions;
  pkv_attend_args& attend = args_.attend;
  attend.positions = rerank.positions;
  attend.counts = rerank.counts;
  attend.candidates = candidates;
  attend.candidate_counts = candidate_counts;
  attend.estimates = rerank.estimates;
  attend.rest_lse = rerank.rest_lse;
  attend.sample_estimates = rerank.sample_estimates;
}

}  // namespace pkv
