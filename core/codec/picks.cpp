#include "core/codec/picks.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <numeric>
#include <utility>

#include "core/base/checked.h"
#include "core/base/status.h"
#include "core/codec/codec.h"
#include "core/format/candidates.h"
#include "core/pipeline/checks.h"
#include "core/pipeline/stages.h"
#include "core/runtime/buffer.h"
#include "core/runtime/row_bytes.h"

namespace pkv {
namespace {

constexpr int64_t kPickPpm = 100000;     // of the keys, per query position
constexpr int64_t kLeastBatch = 8;       // query positions that vote in one call, and
constexpr int64_t kMostVotes = 1 << 23;  // votes in one call where more positions do

// Each call is awaited, which on a device takes longer than its work.
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

// Device memory of one kind of number.
template <class Number>
class Array {
 public:
  static absl::StatusOr<Array> create(const Stream& stream, std::string_view what,
                                      std::initializer_list<Named> extents) {
    PKV_ASSIGN_OR_RETURN(const int64_t count, checked_product(what, extents));
    PKV_ASSIGN_OR_RETURN(
        const int64_t bytes,
        checked_product(what, {{"numbers", count}, {"bytes", int64_t{sizeof(Number)}}}));
    PKV_ASSIGN_OR_RETURN(Buffer buffer, Buffer::create(stream.device(), PKV_MEMORY_DEVICE, bytes));
    return Array(std::move(buffer));
  }
  Number* data() const { return buffer_.as<Number>(); }
  absl::Status fill(const Stream& stream, const std::vector<Number>& numbers) const {
    PKV_RETURN_IF_ERROR(
        stream.copy(data(), numbers.data(), static_cast<int64_t>(numbers.size() * sizeof(Number))));
    return stream.sync();
  }

 private:
  explicit Array(Buffer buffer) : buffer_(std::move(buffer)) {}
  Buffer buffer_;
};

// One sequence that holds all keys.
class Zone {
 public:
  static absl::StatusOr<Zone> create(const Stream& stream, const CodecParams& first_pass,
                                     const TensorView& keys) {
    PKV_ASSIGN_OR_RETURN(CodecParams numbers,
                         CodecParams::create(pick_geometry(first_pass.geometry()),
                                             first_pass.center(), first_pass.balance(), {}));
    PKV_ASSIGN_OR_RETURN(std::shared_ptr<const Codec> codec,
                         Codec::create(stream.device(), std::move(numbers), {}));
    const int64_t n = keys.extent(1);
    pkv_store store{};
    store.capacity = n;
    PKV_ASSIGN_OR_RETURN(store.row_bytes, store_row_bytes(*stream.device(), codec->geometry(), n));
    PKV_ASSIGN_OR_RETURN(auto records,
                         Array<std::byte>::create(stream, "picking: key records",
                                                  {{"kv_heads", codec->geometry().kv_heads},
                                                   {"row_bytes", store.row_bytes}}));
    store.base = records.data();
    Zone zone(std::move(codec), std::move(records), store);
    PKV_RETURN_IF_ERROR(zone.encode(stream, keys));
    return zone;
  }
  const Codec& codec() const { return *codec_; }
  const pkv_store& store() const { return store_; }

 private:
  Zone(std::shared_ptr<const Codec> codec, Array<std::byte> records, const pkv_store& store)
      : codec_(std::move(codec)), records_(std::move(records)), store_(store) {}

  absl::Status encode(const Stream& stream, const TensorView& keys) const {
    const int64_t h = codec_->geometry().kv_heads;
    const int64_t n = keys.extent(1);
    PKV_ASSIGN_OR_RETURN(const auto sequences,
                         Array<int32_t>::create(stream, "sequences", {{"batch", 1}}));
    PKV_ASSIGN_OR_RETURN(const auto numbers,
                         Array<int64_t>::create(stream, "counts", {{"numbers", 2 + h}}));
    std::vector<int64_t> start_count_good(static_cast<std::size_t>(2 + h));
    start_count_good[1] = n;
    PKV_RETURN_IF_ERROR(sequences.fill(stream, {0}));
    PKV_RETURN_IF_ERROR(numbers.fill(stream, start_count_good));
    const int64_t shape[4] = {1, h, n, keys.extent(2)};
    const int64_t strides[4] = {0, keys.stride(0), keys.stride(1), 1};
    pkv_encode_args args{};
    args.struct_size = sizeof args;
    args.batch = 1;
    args.codec = codec_->params();
    args.keys = keys.tensor();
    args.keys.ndim = 4;
    args.keys.shape = shape;
    args.keys.strides = strides;
    args.sequences = sequences.data();
    args.starts = numbers.data();
    args.counts = numbers.data() + 1;
    args.store = store_;
    args.good_counts = numbers.data() + 2;
    return stage_encode_sync(stream, args);
  }

  std::shared_ptr<const Codec> codec_;
  Array<std::byte> records_;
  pkv_store store_;
};

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

absl::StatusOr<std::vector<int32_t>> count_picks_sync(const Stream& stream,
                                                      const CodecParams& first_pass,
                                                      const TensorView& keys,
                                                      const TensorView& queries) {
  const int64_t h = first_pass.geometry().kv_heads;
  const int64_t n = keys.extent(1);
  const int64_t m = queries.extent(1);
  std::vector<int32_t> picks(static_cast<std::size_t>(h * n));
  if (n == 0 || m == 0) return picks;
  PKV_ASSIGN_OR_RETURN(const Zone zone, Zone::create(stream, first_pass, keys));
  const pkv_candidate_rule rule = format::candidate_rule(kPickPpm, 0);
  const int64_t most = format::candidate_count(rule, n);
  const int32_t at_once = batch_of(h, n, m);
  PKV_ASSIGN_OR_RETURN(const auto sequences,
                       Array<int32_t>::create(stream, "sequences", {{"batch", at_once}}));
  PKV_ASSIGN_OR_RETURN(const auto lengths,
                       Array<int64_t>::create(stream, "lengths", {{"batch", at_once}}));
  PKV_RETURN_IF_ERROR(
      sequences.fill(stream, std::vector<int32_t>(static_cast<std::size_t>(at_once), 0)));
  PKV_RETURN_IF_ERROR(
      lengths.fill(stream, std::vector<int64_t>(static_cast<std::size_t>(at_once), n)));
  PKV_ASSIGN_OR_RETURN(const auto votes,
                       Array<float>::create(stream, "picking: votes",
                                            {{"batch", at_once}, {"kv_heads", h}, {"n", n}}));
  PKV_ASSIGN_OR_RETURN(
      const auto candidates,
      Array<int32_t>::create(stream, "picking: candidates",
                             {{"batch", at_once}, {"kv_heads", h}, {"candidates", most}}));
  PKV_ASSIGN_OR_RETURN(
      const auto counts,
      Array<int32_t>::create(stream, "picking: counts", {{"batch", at_once}, {"kv_heads", h}}));

  for (int64_t begin = 0; begin < m; begin += at_once) {
    const auto batch = static_cast<int32_t>(std::min<int64_t>(at_once, m - begin));
    const Positions positions(queries, begin, batch);
    pkv_vote_args vote{};
    vote.struct_size = sizeof vote;
    vote.query_heads = static_cast<int32_t>(queries.extent(0));
    vote.vote_group = PKV_VOTE_GROUP_SUM;
    vote.rho_of = PKV_RHO_OF_KEYS;
    vote.codec = zone.codec().params();
    vote.batch = {batch, 0, sequences.data(), lengths.data(), n};
    vote.queries = positions.tensor();
    vote.store = zone.store();
    vote.votes = votes.data();
    vote.votes_stride = n;
    PKV_RETURN_IF_ERROR(stage_vote_sync(stream, vote));
    pkv_select_args select{};
    select.struct_size = sizeof select;
    select.kv_heads = static_cast<int32_t>(h);
    select.batch = vote.batch;
    select.rule = rule;
    select.votes = votes.data();
    select.votes_stride = n;
    select.candidates = candidates.data();
    select.candidates_stride = most;
    select.candidate_counts = counts.data();
    PKV_RETURN_IF_ERROR(stage_select_sync(stream, select));

    PKV_ASSIGN_OR_RETURN(const auto found, read_back(stream, candidates.data(), batch * h * most));
    PKV_ASSIGN_OR_RETURN(const auto found_counts, read_back(stream, counts.data(), batch * h));
    for (int64_t row = 0; row < batch * h; ++row) {
      int32_t* of_head = picks.data() + (row % h) * n;
      const int32_t* first = found.data() + row * most;
      const int32_t* last = first + found_counts[static_cast<std::size_t>(row)];
      std::for_each(first, last, [of_head](int32_t position) { ++of_head[position]; });
    }
  }
  return picks;
}

}  // namespace pkv
