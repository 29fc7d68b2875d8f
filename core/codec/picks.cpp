#include "core/codec/picks.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "core/base/status.h"
#include "core/codec/codec.h"
#include "core/format/candidates.h"
#include "core/format/records.h"
#include "core/pipeline/checks.h"
#include "core/pipeline/run_stage.h"
#include "core/runtime/row_bytes.h"

namespace pkv {
namespace {

constexpr int64_t kPickPpm = 100000;     // of the keys, per query position
constexpr int64_t kLeastBatch = 8;       // query positions that vote in one call, and
constexpr int64_t kMostVotes = 1 << 23;  // votes in one call where more positions do

// Each batch is awaited, which on a device takes longer than its work.
int32_t batch_of(int64_t kv_heads, int64_t keys, int64_t positions) {
  const int64_t fitting = std::max(kLeastBatch, kMostVotes / (kv_heads * keys));
  return static_cast<int32_t>(std::min(fitting, positions));
}

// Records with a vote factor and nothing of the values.
pkv_geometry pick_geometry(pkv_geometry g) {
  g.vote = PKV_VOTE_GRADED;
  g.v_source = PKV_V_SOURCE_NONE;
  g.value_dim = 0;
  g.sketch_bits = 0;
  g.sketch_stride = 0;
  g.value_norm = 0;
  return g;
}

// One sequence that holds all keys, for batches of up to `at_once` entries.
struct Zone {
  pkv_geometry geometry{};
  pkv_codec_params codec{};
  pkv_store store{};
  const int32_t* sequences = nullptr;  // [at_once] 0
  const int64_t* lengths = nullptr;    // [at_once] n
  // What enqueued copies read.
  PackedParams packed;
  std::vector<int64_t> numbers;
};

// Encodes them. The zone stays where it is and outlives the memory.
absl::Status make_zone(const Stream& stream, Temporaries& memory, const CodecParams& first_pass,
                       const TensorView& keys, int32_t at_once, Zone& zone) {
  const Device& device = *stream.device();
  zone.geometry = pick_geometry(first_pass.geometry());
  const int64_t h = zone.geometry.kv_heads;
  const int64_t n = keys.extent(1);
  PKV_ASSIGN_OR_RETURN(
      const CodecParams params,
      CodecParams::create(zone.geometry, first_pass.center(), first_pass.balance(), {}));
  PKV_ASSIGN_OR_RETURN(zone.packed, PackedParams::create(params));
  const auto packed_bytes = static_cast<int64_t>(zone.packed.bytes().size());
  PKV_ASSIGN_OR_RETURN(std::byte* const params_at, memory.take(packed_bytes));
  PKV_RETURN_IF_ERROR(stream.copy(params_at, zone.packed.bytes().data(), packed_bytes));
  zone.codec = zone.packed.at(params_at, zone.geometry);
  zone.store.capacity = n;
  PKV_ASSIGN_OR_RETURN(zone.store.row_bytes, store_row_bytes(device, zone.geometry, n));
  PKV_ASSIGN_OR_RETURN(
      zone.store.base,
      memory.take<std::byte>("picking: key records",
                             {{"kv_heads", h}, {"row_bytes", zone.store.row_bytes}}));

  // Zeros, which are sequences, the start and counts of usable keys; then n.
  const int64_t zeros = std::max<int64_t>(at_once, 1 + h);
  zone.numbers.resize(static_cast<std::size_t>(zeros + at_once));
  std::fill(zone.numbers.begin() + zeros, zone.numbers.end(), n);
  PKV_ASSIGN_OR_RETURN(auto* const on_device,
                       memory.take<int64_t>("numbers of a batch", {{"numbers", zeros + at_once}}));
  PKV_RETURN_IF_ERROR(stream.copy(on_device, zone.numbers.data(),
                                  static_cast<int64_t>(zone.numbers.size() * sizeof(int64_t))));
  PKV_ASSIGN_OR_RETURN(auto* const sequences,
                       memory.take<int32_t>("sequences", {{"batch", at_once}}));
  PKV_RETURN_IF_ERROR(stream.fill(sequences, 0, int64_t{at_once} * int64_t{sizeof(int32_t)}));
  zone.sequences = sequences;
  zone.lengths = on_device + zeros;

  const int64_t shape[4] = {1, h, n, keys.extent(2)};
  const int64_t strides[4] = {0, keys.stride(0), keys.stride(1), 1};
  pkv_encode_args args{};
  args.struct_size = sizeof args;
  args.batch = 1;
  args.codec = zone.codec;
  args.keys = keys.tensor();
  args.keys.ndim = 4;
  args.keys.shape = shape;
  args.keys.strides = strides;
  args.sequences = sequences;
  args.starts = on_device;
  args.counts = zone.lengths;
  args.store = zone.store;
  args.good_counts = on_device + 1;
  return enqueue_stage(stream, memory, "encode", device.backend().encode, args);
}

// Positions [begin, begin + batch) of queries [hq, m, d] as [batch, hq, d].
class Positions {
 public:
  Positions(const TensorView& queries, int64_t begin, int32_t batch)
      : tensor_(queries.tensor()),
        shape_{batch, queries.extent(0), queries.extent(2)},
        strides_{queries.stride(1), queries.stride(0), 1} {
    tensor_.data = static_cast<std::byte*>(queries.origin()) +
                   queries.element_offset(0, begin, 0) * queries.element_bytes();
    tensor_.byte_offset = 0;
    tensor_.shape = shape_;
    tensor_.strides = strides_;
  }
  Positions(const Positions&) = delete;
  Positions& operator=(const Positions&) = delete;
  const pkv_tensor& tensor() const { return tensor_; }

 private:
  pkv_tensor tensor_;
  int64_t shape_[3];
  int64_t strides_[3];
};

}  // namespace

absl::StatusOr<std::vector<int32_t>> count_picks_sync(const Stream& stream, Temporaries& memory,
                                                      const CodecParams& first_pass,
                                                      const TensorView& keys,
                                                      const TensorView& queries) {
  const int64_t h = first_pass.geometry().kv_heads;
  const int64_t n = keys.extent(1);
  const int64_t m = queries.extent(1);
  PKV_RETURN_IF_ERROR(check_range("keys: axis 1 (n) with fit=picked", n, 0, format::kMaxTokens));
  std::vector<int32_t> picks(static_cast<std::size_t>(h * n));
  if (n == 0 || m == 0) return picks;
  const Device& device = *stream.device();
  const pkv_candidate_rule rule = format::candidate_rule(kPickPpm, 0);
  const int64_t most = format::candidate_count(rule, n);
  const int32_t at_once = batch_of(h, n, m);
  Zone zone;
  const WaitAtEnd copies(stream);  // which read the zone's numbers
  PKV_RETURN_IF_ERROR(make_zone(stream, memory, first_pass, keys, at_once, zone));
  PKV_ASSIGN_OR_RETURN(
      auto* const votes,
      memory.take<float>("picking: votes", {{"batch", at_once}, {"kv_heads", h}, {"n", n}}));
  // Candidates of each row, then how many they are.
  PKV_ASSIGN_OR_RETURN(
      auto* const candidates,
      memory.take<int32_t>("picking: candidates",
                           {{"batch", at_once}, {"kv_heads", h}, {"candidates", most + 1}}));

  for (int64_t begin = 0; begin < m; begin += at_once) {
    const auto batch = static_cast<int32_t>(std::min<int64_t>(at_once, m - begin));
    const Positions positions(queries, begin, batch);
    const int64_t rows = batch * h;
    pkv_vote_args vote{};
    vote.struct_size = sizeof vote;
    vote.query_heads = static_cast<int32_t>(queries.extent(0));
    vote.vote_group = PKV_VOTE_GROUP_SUM;
    vote.rho_of = PKV_RHO_OF_KEYS;
    vote.codec = zone.codec;
    vote.batch = {batch, 0, zone.sequences, zone.lengths, n};
    vote.queries = positions.tensor();
    vote.store = zone.store;
    vote.votes = votes;
    vote.votes_stride = n;
    PKV_RETURN_IF_ERROR(enqueue_stage(stream, memory, "vote", device.backend().vote, vote));
    pkv_select_args select{};
    select.struct_size = sizeof select;
    select.kv_heads = static_cast<int32_t>(h);
    select.batch = vote.batch;
    select.rule = rule;
    select.votes = votes;
    select.votes_stride = n;
    select.candidates = candidates;
    select.candidates_stride = most;
    select.candidate_counts = candidates + rows * most;
    PKV_RETURN_IF_ERROR(enqueue_stage(stream, memory, "select", device.backend().select, select));

    PKV_ASSIGN_OR_RETURN(const auto found, read_back(stream, candidates, rows * (most + 1)));
    for (int64_t row = 0; row < rows; ++row) {
      int32_t* of_head = picks.data() + (row % h) * n;
      const int32_t* first = found.data() + row * most;
      std::for_each(first, first + found[static_cast<std::size_t>(rows * most + row)],
                    [of_head](int32_t position) { ++of_head[position]; });
    }
  }
  return picks;
}

}  // namespace pkv
