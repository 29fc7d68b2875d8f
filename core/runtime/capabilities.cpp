#include "core/runtime/capabilities.h"

#include <algorithm>
#include <array>

#include "core/format/inv_sqrt.h"
#include "core/format/records.h"
#include "core/runtime/row_bytes.h"

namespace pkv {
namespace {

// The words of the options and the numbers behind them.
struct Word {
  const char* name;
  int32_t number;
};
constexpr Word kDtypes[] = {
    {"f32", PKV_DTYPE_F32}, {"f16", PKV_DTYPE_F16}, {"bf16", PKV_DTYPE_BF16}};
constexpr Word kCodecs[] = {
    {"polar4", PKV_CODEC_POLAR4}, {"scalar4", PKV_CODEC_SCALAR4}, {"scalar5", PKV_CODEC_SCALAR5}};
constexpr Word kVotes[] = {{"tier", PKV_VOTE_TIER}, {"graded", PKV_VOTE_GRADED}};
struct Tail {
  const char* name;
  int32_t number;
  int32_t sketch_bits;
  int32_t sketch_stride;
};
constexpr Tail kTails[] = {{"drop", PKV_TAIL_DROP, 0, 0},
                           {"mean", PKV_TAIL_MEAN, 0, 0},
                           {"sampled", PKV_TAIL_SAMPLED, 4, 16},
                           {"sketch2", PKV_TAIL_SKETCH, 2, 1},
                           {"sketch4", PKV_TAIL_SKETCH, 4, 1}};

constexpr int32_t kKvHeads = 2;
constexpr int32_t kQueryHeads = 8;
constexpr int64_t kBatch = 1;
constexpr int64_t kTokens = 1024;
constexpr int32_t kK = 100;

// A step of the default profile, with what is varied.
struct Step {
  int32_t head_dim = 128;
  int32_t dtype = PKV_DTYPE_BF16;
  int32_t codec = PKV_CODEC_SCALAR4;
  int32_t vote = PKV_VOTE_GRADED;
  Tail tail = kTails[1];
};

pkv_geometry geometry_of(const Step& step) {
  pkv_geometry geometry{};
  geometry.struct_size = sizeof(geometry);
  geometry.kv_heads = kKvHeads;
  geometry.head_dim = step.head_dim;
  geometry.value_dim = step.head_dim;
  geometry.v_source = PKV_V_SOURCE_OWN;
  geometry.codec = step.codec;
  geometry.vote = step.vote;
  geometry.rounds = 1;
  geometry.sketch_bits = step.tail.sketch_bits;
  geometry.sketch_stride = step.tail.sketch_stride;
  return geometry;
}

// The arguments of all stages of a step, without memory: `supports` reads sizes, dtypes and
// options.
class Question {
 public:
  Question(const Device& device, const Step& step)
      : device_(device), step_(step), geometry_(geometry_of(step)) {
    codec_.geometry = &geometry_;
    batch_.batch = kBatch;
    batch_.max_length = kTokens;
    query_shape_ = {kBatch, kQueryHeads, step.head_dim};
    key_shape_ = {kBatch, kKvHeads, kTokens, step.head_dim};
    row_shape_ = {kBatch, kKvHeads, kK, step.head_dim};
  }

  bool is_supported() const { return encode() && vote() && rerank() && attend(); }

 private:
  template <std::size_t kAxes>
  pkv_tensor tensor(const std::array<int64_t, kAxes>& shape) const {
    pkv_tensor tensor{};
    tensor.device_type = device_.info().device_type;
    tensor.device_id = device_.info().device_id;
    tensor.ndim = kAxes;
    tensor.dtype = step_.dtype;
    tensor.shape = shape.data();
    return tensor;
  }

  template <class Args>
  bool ask(pkv_status (*supports)(pkv_backend_device*, const Args*), Args& args) const {
    args.struct_size = sizeof(args);
    args.codec = codec_;
    return device_.call("supports", supports, &args).ok();
  }

  bool encode() const {
    pkv_encode_args args{};
    args.batch = kBatch;
    args.keys = tensor(key_shape_);
    args.values = tensor(key_shape_);
    return ask(device_.backend().encode.supports, args);
  }

  bool vote() const {
    pkv_vote_args args{};
    args.query_heads = kQueryHeads;
    args.vote_group = PKV_VOTE_GROUP_SUM;
    args.rho_of = PKV_RHO_OF_KEYS;
    args.batch = batch_;
    args.queries = tensor(query_shape_);
    args.votes_stride = kTokens;
    return ask(device_.backend().vote.supports, args);
  }

  bool rerank() const {
    pkv_rerank_args args{};
    args.query_heads = kQueryHeads;
    args.rank = PKV_RANK_GROUP;
    args.k = kK;
    args.tail_samples = 512;
    args.scale = format::inv_sqrt(step_.head_dim);
    args.batch = batch_;
    args.queries = tensor(query_shape_);
    args.candidates_stride = kTokens;
    return ask(device_.backend().rerank.supports, args);
  }

  bool attend() const {
    pkv_attend_args args{};
    args.query_heads = kQueryHeads;
    args.tail = step_.tail.number;
    args.tail_samples = 512;
    args.part_count = 1;
    args.scale = format::inv_sqrt(step_.head_dim);
    args.k = kK;
    args.batch = batch_;
    args.queries = tensor(query_shape_);
    args.parts[0].keys = args.parts[0].values = tensor(key_shape_);
    args.row_keys = tensor(row_shape_);
    args.row_values = tensor(row_shape_);
    args.candidates_stride = kTokens;
    args.output = tensor(query_shape_);
    return ask(device_.backend().attend.supports, args);
  }

  const Device& device_;
  Step step_;
  pkv_geometry geometry_;
  pkv_codec_params codec_{};
  pkv_batch batch_{};
  std::array<int64_t, 3> query_shape_{};
  std::array<int64_t, 4> key_shape_{};
  std::array<int64_t, 4> row_shape_{};
};

bool supports(const Device& device, const Step& step) {
  return Question(device, step).is_supported();
}

Capabilities::Layout ask_layout(const Device& device, const Step& step, const char* codec) {
  const pkv_geometry geometry = geometry_of(step);
  Capabilities::Layout layout{codec, "graded", step.head_dim, format::record_sizes(geometry).total,
                              0};
  // A backend that refuses leaves 0.
  layout.row_bytes = store_row_bytes(device, geometry, Capabilities::kLayoutTokens).value_or(0);
  return layout;
}

}  // namespace

Capabilities ask_capabilities(const Device& device) {
  Capabilities can;
  Step base;
  for (int32_t d = format::kMinHeadDim; d <= format::kMaxHeadDim; d += format::kSubspace) {
    Step step = base;
    step.head_dim = d;
    if (supports(device, step)) can.head_dims.push_back(d);
  }
  if (can.head_dims.empty()) return can;
  if (std::find(can.head_dims.begin(), can.head_dims.end(), base.head_dim) == can.head_dims.end()) {
    base.head_dim = can.head_dims.front();
  }
  for (const Word& dtype : kDtypes) {
    Step step = base;
    step.dtype = dtype.number;
    if (supports(device, step)) can.dtypes.push_back(dtype.name);
  }
  for (const Word& codec : kCodecs) {
    Step step = base;
    step.codec = codec.number;
    if (!supports(device, step)) continue;
    can.codecs.push_back(codec.name);
    can.layouts.push_back(ask_layout(device, step, codec.name));
  }
  for (const Word& vote : kVotes) {
    Step step = base;
    step.vote = vote.number;
    if (supports(device, step)) can.votes.push_back(vote.name);
  }
  for (const Tail& tail : kTails) {
    Step step = base;
    step.tail = tail;
    if (supports(device, step)) can.tails.push_back(tail.name);
  }
  return can;
}

}  // namespace pkv
