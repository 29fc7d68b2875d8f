#include "core/codec/codec.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <iterator>
#include <numeric>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "core/base/check.h"
#include "core/base/checked.h"
#include "core/base/dtype.h"
#include "core/base/status.h"
#include "core/base/text.h"
#include "core/codec/fit.h"
#include "core/codec/picks.h"
#include "core/format/element.h"
#include "core/pipeline/checks.h"
#include "core/pipeline/run_stage.h"
#include "core/pipeline/stages.h"
#include "core/runtime/row_bytes.h"

namespace pkv {
namespace {

// [h, d]: of each head its first key whose squares have a finite sum, zeros if none. Values do not
// count here: the pivot affects rounding only (2.2).
absl::StatusOr<std::vector<float>> find_pivots(const Stream& stream, const TensorView& keys) {
  constexpr int64_t kBlock = 64;  // keys looked at between two waits, behind the first one
  const int64_t n = keys.extent(1);
  const int64_t d = keys.extent(2);
  const int64_t row_bytes = d * keys.element_bytes();
  std::vector<float> pivots(static_cast<std::size_t>(keys.extent(0) * d));
  std::vector<int64_t> heads(static_cast<std::size_t>(keys.extent(0)));  // still without one
  std::iota(heads.begin(), heads.end(), 0);
  std::vector<std::byte> rows;
  int64_t count = 1;
  for (int64_t begin = 0; begin < n && !heads.empty(); begin += count) {
    count = begin == 0 ? 1 : std::min(kBlock, n - begin);
    rows.resize(heads.size() * static_cast<std::size_t>(count * row_bytes));
    std::byte* to = rows.data();
    for (const int64_t head : heads) {
      for (int64_t t = begin; t < begin + count; ++t, to += row_bytes) {
        const auto* key = static_cast<const std::byte*>(keys.origin()) +
                          keys.element_offset(head, t, 0) * keys.element_bytes();
        PKV_RETURN_IF_ERROR(stream.copy(to, key, row_bytes));
      }
    }
    PKV_RETURN_IF_ERROR(stream.sync());
    std::vector<int64_t> left;
    for (std::size_t i = 0; i < heads.size(); ++i) {
      float* pivot = pivots.data() + heads[i] * d;
      bool is_found = false;
      for (int64_t k = 0; k < count && !is_found; ++k) {
        const std::byte* row = rows.data() + (static_cast<int64_t>(i) * count + k) * row_bytes;
        float squares = 0;
        for (int64_t j = 0; j < d; ++j) {
          pivot[j] = format::load_element(keys.dtype(), row, j);
          squares += pivot[j] * pivot[j];
        }
        is_found = std::isfinite(squares);
      }
      if (!is_found) left.push_back(heads[i]);
    }
    heads = std::move(left);
  }
  for (const int64_t head : heads) std::fill_n(pivots.begin() + head * d, d, 0.0F);
  return pivots;
}

// The sums of stage fit on the host.
struct Sums {
  std::vector<float> pivot;
  std::vector<int64_t> key_counts, key_weights, query_counts;
  std::vector<double> key_sums, key_squares, query_squares, value_sums;
};

// Runs stage fit; what it delivers is read back. `weights` [h, n]; empty: all 1.
absl::StatusOr<Sums> fit_sums(const Stream& stream, Temporaries& memory, pkv_fit_args args,
                              std::vector<float> pivot, std::span<const int32_t> weights) {
  const pkv_geometry& g = *args.geometry;
  const int64_t heads = g.kv_heads;
  const int64_t numbers = heads * g.head_dim;
  const int64_t value_numbers = is_present(args.values) ? heads * g.value_dim : 0;
  const int64_t doubles = 3 * numbers + value_numbers;
  const int64_t words = doubles + 3 * heads;  // of 8 bytes
  const WaitAtEnd copies(stream);
  PKV_ASSIGN_OR_RETURN(auto* const sums_at,
                       memory.take<int64_t>("sums of the fit", {{"numbers", words}}));
  PKV_ASSIGN_OR_RETURN(auto* const pivot_at, memory.take<float>("pivots", {{"numbers", numbers}}));
  PKV_ASSIGN_OR_RETURN(
      auto* const weights_at,
      memory.take<int32_t>("weights", {{"numbers", static_cast<int64_t>(weights.size())}}));
  PKV_RETURN_IF_ERROR(stream.copy(pivot_at, pivot.data(), numbers * int64_t{sizeof(float)}));
  PKV_RETURN_IF_ERROR(
      stream.copy(weights_at, weights.data(), static_cast<int64_t>(weights.size_bytes())));
  auto* const doubles_at = reinterpret_cast<double*>(sums_at);
  args.pivot = pivot_at;
  args.weights = weights_at;
  args.key_sums = doubles_at;
  args.key_squares = doubles_at + numbers;
  args.query_squares = doubles_at + 2 * numbers;
  if (value_numbers > 0) args.value_sums = doubles_at + 3 * numbers;
  args.key_counts = sums_at + doubles;
  args.key_weights = sums_at + doubles + heads;
  args.query_counts = sums_at + doubles + 2 * heads;
  PKV_RETURN_IF_ERROR(enqueue_stage(stream, memory, "fit", stream.device()->backend().fit, args));
  PKV_ASSIGN_OR_RETURN(const std::vector<int64_t> found, read_back(stream, sums_at, words));

  const auto counts = [&](int64_t number) {
    const auto from = found.begin() + doubles + number * heads;
    return std::vector<int64_t>(from, from + heads);
  };
  const auto sums_of = [&](int64_t begin, int64_t count) {
    std::vector<double> of(static_cast<std::size_t>(count));
    std::transform(found.begin() + begin, found.begin() + begin + count, of.begin(),
                   [](int64_t bits) { return std::bit_cast<double>(bits); });
    return of;
  };
  Sums sums;
  sums.pivot = std::move(pivot);
  sums.key_sums = sums_of(0, numbers);
  sums.key_squares = sums_of(numbers, numbers);
  sums.query_squares = sums_of(2 * numbers, numbers);
  sums.value_sums = sums_of(3 * numbers, value_numbers);
  sums.key_counts = counts(0);
  sums.key_weights = counts(1);
  sums.query_counts = counts(2);
  return sums;
}

absl::StatusOr<FittedParams> params_from(const pkv_geometry& geometry, Sums sums,
                                         const CodecOptions& options) {
  pkv_fit_args args{};
  args.struct_size = sizeof args;
  args.geometry = &geometry;
  args.pivot = sums.pivot.data();
  args.key_counts = sums.key_counts.data();
  args.key_weights = sums.key_weights.data();
  args.key_sums = sums.key_sums.data();
  args.key_squares = sums.key_squares.data();
  args.query_counts = sums.query_counts.data();
  args.query_squares = sums.query_squares.data();
  args.value_sums = sums.value_sums.empty() ? nullptr : sums.value_sums.data();
  return fit_params(args, options.center, options.balance);
}

// The second pass of fit = picked (2.2): centre and balance of the heads of which keys were picked.
// With less to go by, centre and balance are those of a few keys, and others will be far off.
constexpr int64_t kFewKeys = 256;

void warn_of_few_keys(const Device& device, std::span<const int64_t> key_counts) {
  const auto least = std::min_element(key_counts.begin(), key_counts.end());
  if (least == key_counts.end() || *least >= kFewKeys) return;
  device.host().log(
      LogLevel::kWarning,
      str_cat("codec fitted on ", *least, " keys of KV head ", least - key_counts.begin(),
              ": below ", kFewKeys, " recall may suffer, fit again when there are more"));
}

// Fewer keys say too little about a centre and a spread.
constexpr int64_t kFewestPicks = 32;

absl::Status refit_picked(const Stream& stream, Temporaries& memory, pkv_fit_args args,
                          const std::vector<float>& pivot, const TensorView& keys,
                          const TensorView& queries, const CodecOptions& options,
                          const CodecParams& first_pass, FittedParams& fitted) {
  PKV_ASSIGN_OR_RETURN(const std::vector<int32_t> picks,
                       count_picks_sync(stream, memory, first_pass, keys, queries));
  if (picks.empty()) return absl::OkStatus();
  args.queries_as = PKV_FIT_QUERIES_SUM;
  PKV_ASSIGN_OR_RETURN(Sums sums, fit_sums(stream, memory, args, pivot, picks));
  const std::vector<int64_t> weights = sums.key_weights;
  PKV_ASSIGN_OR_RETURN(const FittedParams picked,
                       params_from(*args.geometry, std::move(sums), options));
  const auto dim = static_cast<std::size_t>(args.geometry->head_dim);
  const std::size_t count = picks.size() / weights.size();
  for (std::size_t head = 0; head < weights.size(); ++head) {
    const auto row = std::span(picks).subspan(head * count, count);
    const auto different = std::count_if(row.begin(), row.end(), [](int32_t n) { return n > 0; });
    if (different < kFewestPicks || weights[head] == 0) continue;
    std::copy_n(picked.center.begin() + static_cast<std::ptrdiff_t>(head * dim), dim,
                fitted.center.begin() + static_cast<std::ptrdiff_t>(head * dim));
    std::copy_n(picked.balance.begin() + static_cast<std::ptrdiff_t>(head * dim), dim,
                fitted.balance.begin() + static_cast<std::ptrdiff_t>(head * dim));
  }
  return absl::OkStatus();
}

absl::StatusOr<int32_t> heads_of(const pkv_tensor& keys) {
  if (keys.ndim != 3 || keys.shape == nullptr) {
    return absl::InvalidArgumentError(
        str_cat("keys: ndim=", keys.ndim, ", accepted: 3 [h, n, d] with a shape"));
  }
  PKV_RETURN_IF_ERROR(check_range("keys: axis 0 (h)", keys.shape[0], 1, INT32_MAX));
  return static_cast<int32_t>(keys.shape[0]);
}

}  // namespace

pkv_tensor prefix_view(const pkv_tensor& keys, int32_t value_dim, int64_t* shape) {
  PKV_DCHECK(keys.strides != nullptr);
  pkv_tensor view = keys;
  std::copy_n(keys.shape, keys.ndim, shape);
  shape[keys.ndim - 1] = value_dim;
  view.shape = shape;
  return view;
}

absl::StatusOr<PackedParams> PackedParams::create(const CodecParams& numbers) {
  const std::span<const float> arrays[] = {
      numbers.center(),  numbers.balance(),      numbers.inv_balance(),   numbers.signs_1(),
      numbers.signs_2(), numbers.value_center(), numbers.value_signs_1(), numbers.value_signs_2()};
  PackedParams packed;
  int64_t bytes = 0;
  for (std::size_t i = 0; i < std::size(arrays); ++i) {
    packed.offsets_[i] = arrays[i].empty() ? -1 : bytes;
    const auto end = checked_add(bytes, static_cast<int64_t>(arrays[i].size_bytes()));
    const auto padded = end ? checked_round_up(*end, kAlignment) : std::nullopt;
    if (!padded) {
      return absl::InvalidArgumentError(
          str_cat("codec parameters too large: ", arrays[i].size(), " numbers"));
    }
    bytes = *padded;
  }
  packed.bytes_.resize(static_cast<std::size_t>(bytes));
  for (std::size_t i = 0; i < std::size(arrays); ++i) {
    if (arrays[i].empty()) continue;
    std::memcpy(packed.bytes_.data() + packed.offsets_[i], arrays[i].data(),
                arrays[i].size_bytes());
  }
  return packed;
}

pkv_codec_params PackedParams::at(const std::byte* base, const pkv_geometry& geometry) const {
  const auto array = [&](std::size_t i) {
    return offsets_[i] < 0 ? nullptr : reinterpret_cast<const float*>(base + offsets_[i]);
  };
  pkv_codec_params params{};
  params.geometry = &geometry;
  params.center = array(0);
  params.balance = array(1);
  params.inv_balance = array(2);
  params.signs_1 = array(3);
  params.signs_2 = array(4);
  params.value_center = array(5);
  params.value_signs_1 = array(6);
  params.value_signs_2 = array(7);
  return params;
}

absl::StatusOr<std::shared_ptr<const Codec>> Codec::create(std::shared_ptr<const Device> device,
                                                           CodecParams numbers,
                                                           const CodecOptions& options) {
  // A backend that does not know this geometry says so here, not at the first append.
  PKV_RETURN_IF_ERROR(store_row_bytes(*device, numbers.geometry(), 1).status());
  std::shared_ptr<Codec> codec(new Codec(std::move(device), std::move(numbers), options));
  PKV_RETURN_IF_ERROR(codec->upload());
  return std::shared_ptr<const Codec>(std::move(codec));
}

absl::Status Codec::upload() {
  PKV_ASSIGN_OR_RETURN(const PackedParams packed, PackedParams::create(numbers_));
  const auto bytes = static_cast<int64_t>(packed.bytes().size());
  PKV_ASSIGN_OR_RETURN(buffer_, Buffer::create(device_, PKV_MEMORY_DEVICE, bytes));
  PKV_ASSIGN_OR_RETURN(const Stream stream, Stream::create(device_));
  params_ = packed.at(buffer_.as<std::byte>(), numbers_.geometry());
  const absl::Status copied = stream.copy(buffer_.data(), packed.bytes().data(), bytes);
  // Also after a failure: a copy that was enqueued reads `packed`.
  const absl::Status passed = stream.sync();
  return copied.ok() ? passed : copied;
}

absl::StatusOr<std::shared_ptr<const Codec>> Codec::fit_sync(const Stream& stream,
                                                             const Config& config,
                                                             const pkv_tensor& keys,
                                                             const pkv_tensor* queries,
                                                             const pkv_tensor* values) {
  Temporaries memory(stream);
  PKV_ASSIGN_OR_RETURN(CodecParams numbers,
                       fit_numbers_sync(stream, memory, config, keys, queries, values));
  return create(stream.device(), std::move(numbers), config.codec_options());
}

absl::StatusOr<CodecParams> Codec::fit_numbers_sync(const Stream& stream, Temporaries& memory,
                                                    const Config& config, const pkv_tensor& keys,
                                                    const pkv_tensor* queries,
                                                    const pkv_tensor* values) {
  const Device& device = *stream.device();
  PKV_ASSIGN_OR_RETURN(const int32_t heads, heads_of(keys));
  PKV_ASSIGN_OR_RETURN(const pkv_geometry geometry, config.geometry(heads));
  PKV_ASSIGN_OR_RETURN(const TensorView view, check_tensor(device, "keys", keys,
                                                           {exactly("h", heads), at_least("n", 0),
                                                            exactly("d", geometry.head_dim)},
                                                           kFloatTypes));
  const auto given = [](const pkv_tensor* tensor) { return tensor ? *tensor : pkv_tensor{}; };
  PKV_ASSIGN_OR_RETURN(const FitSamples samples, check_fit_samples(device, geometry, view.extent(1),
                                                                   given(queries), given(values)));
  pkv_fit_args args{};
  args.struct_size = sizeof args;
  args.queries_as = PKV_FIT_QUERIES_HEADS;
  args.geometry = &geometry;
  args.keys = view.tensor();
  if (samples.queries) args.queries = samples.queries->tensor();
  int64_t prefix_shape[3];
  if (samples.values) {
    args.values = samples.values->tensor();
  } else if (geometry.v_source == PKV_V_SOURCE_K_PREFIX) {
    args.values = prefix_view(args.keys, geometry.value_dim, prefix_shape);
  } else if (geometry.sketch_bits != 0) {
    return absl::InvalidArgumentError(
        str_cat("values=NULL, accepted: [h, n, dv], for the value sketch of ", geometry.sketch_bits,
                " bits"));
  }
  PKV_ASSIGN_OR_RETURN(const std::vector<float> pivot, find_pivots(stream, view));
  const CodecOptions options = config.codec_options();
  PKV_ASSIGN_OR_RETURN(Sums sums, fit_sums(stream, memory, args, pivot, {}));
  if (options.center) warn_of_few_keys(device, sums.key_counts);
  PKV_ASSIGN_OR_RETURN(FittedParams fitted, params_from(geometry, std::move(sums), options));
  std::span<const float> value_center = fitted.value_center;
  if (geometry.sketch_bits == 0) value_center = {};
  PKV_ASSIGN_OR_RETURN(CodecParams numbers,
                       CodecParams::create(geometry, fitted.center, fitted.balance, value_center));
  if (!options.fit_picked || !(options.center || options.balance) || !samples.queries) {
    return numbers;
  }
  PKV_RETURN_IF_ERROR(
      refit_picked(stream, memory, args, pivot, view, *samples.queries, options, numbers, fitted));
  return CodecParams::create(geometry, fitted.center, fitted.balance, value_center);
}

}  // namespace pkv
