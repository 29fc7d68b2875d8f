#include "tests/conformance/vote_stage.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "fmt/core.h"
#include "tests/conformance/failure.h"

namespace pkv::conformance {
namespace {

// Rows of votes as the rows of a tensor.
Shape votes_shape(int64_t rows, int64_t row) { return {1, rows, row}; }

int64_t stride_of(const pkv_tensor& votes) { return votes.strides[1]; }

// The first counts[r] votes of each row; Failure if others were written.
Rows<float> read_wide(const Session& session, const pkv_tensor& view, const Tensor& votes,
                      const std::vector<int64_t>& counts) {
  const Dense all = session.read("votes", view, votes);
  const int64_t row = votes.shape[2];
  Rows<float> rows;
  for (size_t r = 0; r < counts.size(); ++r) {
    const auto* first = all.bytes.data() + static_cast<int64_t>(r) * row * int64_t{sizeof(float)};
    const auto used = static_cast<size_t>(counts[r]);
    rows.emplace_back(used);
    if (used > 0) std::memcpy(rows[r].data(), first, used * sizeof(float));
    for (size_t i = used * sizeof(float); i < static_cast<size_t>(row) * sizeof(float); ++i) {
      if (first[i] == session.fill()) continue;
      throw Failure(fmt::format("votes: row {} was written behind what is in use", r));
    }
  }
  return rows;
}

}  // namespace

VoteInput vote_input(const World& world) {
  VoteInput input;
  input.queries = world.query_tensor();
  input.batch = world.batch();
  input.batch.max_length += 2;
  input.query_heads = world.setup().hq();
  input.votes_stride = input.batch.max_length + 3;
  return input;
}

Votes run_vote(const Place& place, uint8_t fill, const Codec& codec, const Zone& zone,
               const VoteInput& input) {
  Session session(place, fill);
  const int64_t rows = input.batch.size() * codec.heads();
  pkv_vote_args args = {};
  args.struct_size = sizeof args;
  args.query_heads = input.query_heads;
  args.vote_group = input.vote_group;
  args.rho_of = input.rho_of;
  args.codec = put_codec(session, codec, input.batch.sequences);
  args.batch = put_batch(session, input.batch);
  args.queries = session.in("queries", input.queries);
  args.store = put_store(session, codec, zone, /*may_change=*/false);
  args.occupancy = session.in("occupancy", zone.occupancy);
  const std::vector<int64_t> lengths = input.batch.lengths_of_rows(codec.heads());
  if (input.is_wide) {
    const Tensor votes = empty_tensor(PKV_DTYPE_F32, votes_shape(rows, input.votes_stride),
                                      Layout::kWideTokens, fill);
    const pkv_tensor view = session.out("votes", votes);
    args.votes = static_cast<float*>(view.data);
    args.votes_stride = stride_of(view);
    session.finish("pkv_stage_vote_sync",
                   pkv_stage_vote_sync(place.device(), place.stream(), &args));
    return {read_wide(session, view, votes, lengths)};
  }
  args.votes = session.out<float>("votes", rows * input.votes_stride);
  args.votes_stride = input.votes_stride;
  session.finish("pkv_stage_vote_sync", pkv_stage_vote_sync(place.device(), place.stream(), &args));
  return {session.read_rows("votes", args.votes, input.votes_stride, lengths)};
}

pkv_candidate_rule share_rule(int64_t ppm, int32_t k) {
  pkv_candidate_rule rule = {};
  rule.below[0] = INT64_MAX;
  rule.ppm[0] = ppm;
  rule.k = k;
  rule.steps = 1;
  return rule;
}

SelectInput select_input(const Rows<float>& votes, const std::vector<int64_t>& lengths,
                         int32_t heads, const pkv_candidate_rule& rule) {
  SelectInput input;
  input.lengths = lengths;
  input.heads = heads;
  input.votes = votes;
  input.rule = rule;
  for (const int64_t length : lengths) input.max_length = std::max(input.max_length, length);
  input.votes_stride = input.max_length + 5;
  // The most of any length up to the longest: a schedule may ask for fewer of more keys.
  for (int64_t n = 0; n <= input.max_length; ++n) {
    int64_t count = 0;
    require("pkv_candidate_count", pkv_candidate_count(&rule, n, &count));
    input.candidates_stride = std::max(input.candidates_stride, count + 3);
  }
  return input;
}

Candidates run_select(const Place& place, uint8_t fill, const SelectInput& input) {
  Session session(place, fill);
  const auto rows = static_cast<int64_t>(input.votes.size());
  std::vector<float> votes(static_cast<size_t>(rows * input.votes_stride),
                           std::numeric_limits<float>::infinity());
  for (size_t r = 0; r < input.votes.size(); ++r) {
    std::copy(input.votes[r].begin(), input.votes[r].end(),
              votes.begin() + static_cast<int64_t>(r) * input.votes_stride);
  }
  pkv_select_args args = {};
  args.struct_size = sizeof args;
  args.kv_heads = input.heads;
  args.batch.batch = static_cast<int32_t>(input.lengths.size());
  args.batch.lengths = session.in("lengths", input.lengths);
  args.batch.max_length = input.max_length;
  args.rule = input.rule;
  args.votes_stride = input.votes_stride;
  Tensor wide;
  if (input.is_wide) {
    wide = lay_out(make_dense(PKV_DTYPE_F32, votes_shape(rows, input.votes_stride), votes),
                   Layout::kWideTokens);
    const pkv_tensor view = session.in("votes", wide);
    args.votes = static_cast<const float*>(view.data);
    args.votes_stride = stride_of(view);
  } else {
    args.votes = session.in("votes", votes);
  }
  args.candidates = session.out<int32_t>("candidates", rows * input.candidates_stride);
  args.candidates_stride = input.candidates_stride;
  args.candidate_counts = session.out<int32_t>("candidate_counts", rows);
  session.finish("pkv_stage_select_sync",
                 pkv_stage_select_sync(place.device(), place.stream(), &args));
  const std::vector<int64_t> whole(static_cast<size_t>(rows), input.candidates_stride);
  return {session.read_rows("candidates", args.candidates, input.candidates_stride, whole),
          session.read(args.candidate_counts, rows)};
}

}  // namespace pkv::conformance
