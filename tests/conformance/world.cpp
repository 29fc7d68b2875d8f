#include "tests/conformance/world.h"

#include <algorithm>
#include <string_view>

#include "fmt/core.h"
#include "tests/conformance/encode_stage.h"
#include "tests/conformance/half.h"
#include "tests/conformance/numbers.h"

namespace pkv::conformance {
namespace {

int32_t value_dim(const Setup& setup) {
  if (setup.v_source == PKV_V_SOURCE_NONE) return 0;
  if (setup.dv != 0) return setup.dv;
  return setup.v_source == PKV_V_SOURCE_K_PREFIX ? 8 : setup.d;
}

// The first `width` elements of each row.
Dense prefix(const Dense& source, int64_t width) {
  Dense result = {source.dtype, source.shape, {}};
  result.shape.back() = width;
  const auto rows = static_cast<size_t>(count_of(source.shape) / source.shape.back());
  const size_t size = rows == 0 ? 0 : source.bytes.size() / rows;
  const size_t kept = size / static_cast<size_t>(source.shape.back()) * static_cast<size_t>(width);
  for (size_t row = 0; row < rows; ++row) {
    const auto begin = source.bytes.begin() + static_cast<int64_t>(row * size);
    result.bytes.insert(result.bytes.end(), begin, begin + static_cast<int64_t>(kept));
  }
  return result;
}

}  // namespace

pkv_geometry Setup::geometry() const {
  pkv_geometry geometry = make_geometry(h, d, value_dim(*this));
  geometry.v_source = v_source;
  geometry.codec = codec;
  geometry.vote = vote;
  geometry.rounds = rounds;
  geometry.sketch_bits = sketch_bits;
  geometry.sketch_stride = sketch_bits == 0 ? 0 : sketch_stride;
  geometry.value_norm = value_norm;
  geometry.seed = 0x9E3779B97F4A7C15ULL;  // both halves of the generator's key in use
  return geometry;
}

std::string Setup::text() const {
  const Setup usual;
  std::string text = fmt::format("d{}", d);
  if (dv != 0) text += fmt::format("_dv{}", dv);
  if (h != 1) text += fmt::format("_h{}", h);
  if (G != 1) text += fmt::format("_g{}", G);
  text += fmt::format("_n{}", n);
  if (dtype != usual.dtype) text += fmt::format("_{}", dtype_name(dtype));
  if (query_dtype != usual.query_dtype) text += fmt::format("_q{}", dtype_name(query_dtype));
  if (rounds != 1) text += fmt::format("_rounds{}", rounds);
  if (sketch_bits != 0) text += fmt::format("_sketch{}", sketch_bits);
  if (sketch_stride != usual.sketch_stride) text += fmt::format("_stride{}", sketch_stride);
  if (value_norm != 0) text += "_norms";
  if (v_source == PKV_V_SOURCE_K_PREFIX) text += "_prefix";
  if (v_source == PKV_V_SOURCE_NONE) text += "_nosource";
  if (!has_values) text += "_novalues";
  if (is_plain) text += "_plain";
  if (layout != usual.layout) text += fmt::format("_{}", layout_name(layout));
  if (keys != std::string_view(usual.keys)) text += fmt::format("_{}", keys);
  if (queries != std::string_view(usual.queries)) text += fmt::format("_q_{}", queries);
  if (values != std::string_view(usual.values)) text += fmt::format("_v_{}", values);
  if (page != 0) text += fmt::format("_page{}", page);
  if (room != usual.room) text += fmt::format("_room{}", room);
  if (sets != 1) text += fmt::format("_sets{}", sets);
  if (query_tokens != 1) text += fmt::format("_tokens{}", query_tokens);
  return text + fmt::format("/b{}", b);
}

const char* codec_name(int32_t codec) {
  switch (codec) {
    case PKV_CODEC_POLAR4: return "polar4";
    case PKV_CODEC_SCALAR4: return "scalar4";
    default: return "scalar5";
  }
}

const char* vote_name(int32_t vote) { return vote == PKV_VOTE_TIER ? "tier" : "graded"; }

std::vector<int64_t> Batch::lengths_of_rows(int32_t heads) const {
  std::vector<int64_t> rows;
  for (const int64_t length : lengths) rows.insert(rows.end(), static_cast<size_t>(heads), length);
  return rows;
}

pkv_batch put_batch(Session& session, const Batch& batch) {
  pkv_batch result = {};
  result.batch = static_cast<int32_t>(batch.size());
  result.sequences = session.in("sequences", batch.sequences);
  result.lengths = session.in("lengths", batch.lengths);
  result.max_length = batch.max_length;
  return result;
}

World::World(const Bench& bench, const Setup& setup, const std::string& name)
    : bench_(bench), setup_(setup) {
  Random random = bench.random(name);
  codec_ = setup.is_plain ? plain_codec(setup.geometry()) : random_codec(setup.geometry(), random);
  if (setup.sets > 1) {
    std::vector<Codec> codecs = {codec_};
    while (static_cast<int32_t>(codecs.size()) < setup.sets) {
      codecs.push_back(random_codec(setup.geometry(), random));
    }
    codec_ = joined(codecs, setup.b + 1);
  }
  make_batch(random);
  make_numbers(random);
}

// Sequences in another order than the entries, and lengths that differ, an empty one among many.
void World::make_batch(Random& random) {
  for (int32_t i = 0; i <= setup_.b; ++i) batch_.sequences.push_back(i);
  for (int32_t i = setup_.b; i > 0; --i) {
    std::swap(batch_.sequences[static_cast<size_t>(i)],
              batch_.sequences[static_cast<size_t>(random.below(i + 1))]);
  }
  batch_.sequences.pop_back();
  for (int32_t i = setup_.b - 1; i >= 0; --i) {
    batch_.sequences[static_cast<size_t>(i)] =
        batch_.sequences[static_cast<size_t>(i / setup_.query_tokens)];
  }
  const int64_t n = setup_.n;
  const int64_t lengths[] = {n, n / 2, n - 1, n, 1, 0, n - 2};
  for (int32_t i = 0; i < setup_.b; ++i) {
    batch_.lengths.push_back(std::clamp<int64_t>(lengths[i % 7], 0, n));
  }
  batch_.max_length = n;
  for (size_t i = 0; i < batch_.sequences.size(); ++i) {
    if (i % static_cast<size_t>(setup_.query_tokens) == 0) {
      indexed_.sequences.push_back(batch_.sequences[i]);
      indexed_.lengths.push_back(0);
    }
    indexed_.lengths.back() = std::max(indexed_.lengths.back(), batch_.lengths[i]);
  }
  indexed_.max_length = n;
}

// In pages, the first page of every sequence with an even number is the same.
void World::share_prefixes(Dense& tokens) const {
  if (setup_.page == 0 || tokens.bytes.empty()) return;
  const int64_t token_bytes = tokens.shape[3] * dtype_bytes(tokens.dtype);
  const int64_t row_bytes = tokens.shape[2] * token_bytes;
  const int64_t shared = std::min(setup_.page, tokens.shape[2]) * token_bytes;
  for (int64_t row = 0; row < tokens.shape[0] * tokens.shape[1]; ++row) {
    if (row / tokens.shape[1] % 2 != 0) continue;
    const auto first = tokens.bytes.begin() + row % tokens.shape[1] * row_bytes;
    std::copy_n(first, shared, tokens.bytes.begin() + row * row_bytes);
  }
}

void World::make_numbers(Random& random) {
  const Setup& s = setup_;
  const Shape shape = {sequences(), s.h, s.n, s.d};
  keys_ = make_dense(s.dtype, shape, key_numbers(random, s.keys, shape, s.dtype));
  share_prefixes(keys_);
  const Shape query_shape = {s.b, s.hq(), s.d};
  queries_ = make_dense(s.query_dtype, query_shape,
                        query_numbers(random, s.queries, query_shape, s.G, s.query_dtype));
  if (s.layout == Layout::kShared) {  // what the shared memory shows
    const Tensor tensor = query_tensor();
    queries_ = gather(tensor, tensor.memory);
    const Tensor shared = lay_out(keys_, s.layout);
    keys_ = gather(shared, shared.memory);
  }
  if (codec_.dv() == 0) return;
  if (s.v_source == PKV_V_SOURCE_K_PREFIX) {
    values_ = prefix(keys_, codec_.dv());
    return;
  }
  const Shape value_shape = {sequences(), s.h, s.n, codec_.dv()};
  values_ = make_dense(s.dtype, value_shape, value_numbers(random, s.values, value_shape, s.dtype));
  share_prefixes(*values_);
  if (s.layout == Layout::kShared) {
    const Tensor shared = lay_out(*values_, s.layout);
    values_ = gather(shared, shared.memory);
  }
}

std::optional<Tensor> World::value_tensor() const {
  if (!values_ || !setup_.has_values) return std::nullopt;
  return lay_out(take(*values_, indexed_.sequences), setup_.layout);
}

const Zone& World::zone() const {
  if (!zone_) {
    const EncodeInput input = encode_input(*this);
    zone_ = bench_
                .expected([&](const Place& place, uint8_t fill) {
                  return run_encode(place, fill, codec_, input);
                })
                .zone;
  }
  return *zone_;
}

}  // namespace pkv::conformance
