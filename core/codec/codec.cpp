#include "core/codec/codec.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
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
#include "core/pipeline/stages.h"
#include "core/runtime/row_bytes.h"

namespace pkv {
namespace {

// Pieces of one buffer, each aligned: offsets first, pointers once the buffer is there.
class Pieces {
 public:
  template <class Number>
  absl::StatusOr<int64_t> add(int64_t count) {
    const int64_t offset = bytes_;
    const auto size = checked_mul(count, int64_t{sizeof(Number)});
    const auto end = size ? checked_add(bytes_, *size) : std::nullopt;
    const auto padded = end ? checked_round_up(*end, kAlignment) : std::nullopt;
    if (!padded) {
      return absl::InvalidArgumentError(str_cat("codec parameters too large: ", count, " numbers"));
    }
    bytes_ = *padded;
    return offset;
  }
  int64_t bytes() const { return bytes_; }

 private:
  int64_t bytes_ = 0;
};

template <class Number>
Number* piece(const Buffer& buffer, int64_t offset) {
  return reinterpret_cast<Number*>(buffer.as<std::byte>() + offset);
}

// Looks for the pivot of one head: its first key whose squares have a finite sum. Zeros if none.
// Values do not count here: the pivot affects rounding only (2.2).
absl::Status find_pivot(const Stream& stream, const TensorView& keys, int64_t head,
                        std::span<float> pivot) {
  constexpr int64_t kBlock = 64;  // keys looked at between two waits, behind the first one
  const int64_t row_bytes = keys.extent(2) * keys.element_bytes();
  std::vector<float> rows(static_cast<std::size_t>(kBlock) * pivot.size());
  auto* bytes = reinterpret_cast<std::byte*>(rows.data());
  int64_t count = 0;
  for (int64_t begin = 0; begin < keys.extent(1); begin += count) {
    count = begin == 0 ? 1 : std::min(kBlock, keys.extent(1) - begin);
    for (int64_t t = 0; t < count; ++t) {
      const auto* key = static_cast<const std::byte*>(keys.origin()) +
                        keys.element_offset(head, begin + t, 0) * keys.element_bytes();
      PKV_RETURN_IF_ERROR(stream.copy(bytes + t * row_bytes, key, row_bytes));
    }
    PKV_RETURN_IF_ERROR(stream.sync());
    for (int64_t t = 0; t < count; ++t) {
      float squares = 0;
      for (std::size_t j = 0; j < pivot.size(); ++j) {
        pivot[j] =
            format::load_element(keys.dtype(), bytes + t * row_bytes, static_cast<int64_t>(j));
        squares += pivot[j] * pivot[j];
      }
      if (std::isfinite(squares)) return absl::OkStatus();
    }
  }
  std::fill(pivot.begin(), pivot.end(), 0.0F);
  return absl::OkStatus();
}

// The sums of stage fit on the host.
struct Sums {
  std::vector<float> pivot;
  std::vector<int64_t> key_counts, key_weights, query_counts;
  std::vector<double> key_sums, key_squares, query_squares, value_sums;
};

// Runs stage fit; what it delivers is read back. `weights` [h, n]; empty: all 1.
absl::StatusOr<Sums> fit_sums(const Stream& stream, pkv_fit_args args, std::vector<float> pivot,
                              std::span<const int32_t> weights) {
  const pkv_geometry& g = *args.geometry;
  const int64_t heads = g.kv_heads;
  const int64_t numbers = heads * g.head_dim;
  const int64_t value_numbers = is_present(args.values) ? heads * g.value_dim : 0;
  Pieces pieces;
  PKV_ASSIGN_OR_RETURN(const int64_t pivot_at, pieces.add<float>(numbers));
  PKV_ASSIGN_OR_RETURN(const int64_t key_counts_at, pieces.add<int64_t>(heads));
  PKV_ASSIGN_OR_RETURN(const int64_t key_weights_at, pieces.add<int64_t>(heads));
  PKV_ASSIGN_OR_RETURN(const int64_t weights_at,
                       pieces.add<int32_t>(static_cast<int64_t>(weights.size())));
  PKV_ASSIGN_OR_RETURN(const int64_t key_sums_at, pieces.add<double>(numbers));
  PKV_ASSIGN_OR_RETURN(const int64_t key_squares_at, pieces.add<double>(numbers));
  PKV_ASSIGN_OR_RETURN(const int64_t query_counts_at, pieces.add<int64_t>(heads));
  PKV_ASSIGN_OR_RETURN(const int64_t query_squares_at, pieces.add<double>(numbers));
  PKV_ASSIGN_OR_RETURN(const int64_t value_sums_at, pieces.add<double>(value_numbers));
  PKV_ASSIGN_OR_RETURN(const Buffer buffer,
                       Buffer::create(stream.device(), PKV_MEMORY_DEVICE, pieces.bytes()));
  const WaitAtEnd copies(stream);
  PKV_RETURN_IF_ERROR(stream.copy(buffer.as<std::byte>() + pivot_at, pivot.data(),
                                  numbers * int64_t{sizeof(float)}));
  args.pivot = piece<float>(buffer, pivot_at);
  args.key_counts = piece<int64_t>(buffer, key_counts_at);
  args.key_weights = piece<int64_t>(buffer, key_weights_at);
  if (!weights.empty()) {
    auto* on_device = piece<int32_t>(buffer, weights_at);
    PKV_RETURN_IF_ERROR(
        stream.copy(on_device, weights.data(), static_cast<int64_t>(weights.size_bytes())));
    args.weights = on_device;
  }
  args.key_sums = piece<double>(buffer, key_sums_at);
  args.key_squares = piece<double>(buffer, key_squares_at);
  args.query_counts = piece<int64_t>(buffer, query_counts_at);
  args.query_squares = piece<double>(buffer, query_squares_at);
  if (value_numbers > 0) args.value_sums = piece<double>(buffer, value_sums_at);
  PKV_RETURN_IF_ERROR(stage_fit_sync(stream, args));

  Sums sums;
  sums.pivot = std::move(pivot);
  PKV_ASSIGN_OR_RETURN(sums.key_counts, read_back(stream, args.key_counts, heads));
  PKV_ASSIGN_OR_RETURN(sums.key_weights, read_back(stream, args.key_weights, heads));
  PKV_ASSIGN_OR_RETURN(sums.key_sums, read_back(stream, args.key_sums, numbers));
  PKV_ASSIGN_OR_RETURN(sums.key_squares, read_back(stream, args.key_squares, numbers));
  PKV_ASSIGN_OR_RETURN(sums.query_counts, read_back(stream, args.query_counts, heads));
  PKV_ASSIGN_OR_RETURN(sums.query_squares, read_back(stream, args.query_squares, numbers));
  PKV_ASSIGN_OR_RETURN(sums.value_sums, read_back(stream, args.value_sums, value_numbers));
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

absl::Status refit_picked(const Stream& stream, pkv_fit_args args, const std::vector<float>& pivot,
                          const TensorView& keys, const CodecOptions& options,
                          const CodecParams& first_pass, FittedParams& fitted) {
  PKV_ASSIGN_OR_RETURN(const TensorView queries,
                       check_tensor(*stream.device(), "queries", args.queries,
                                    {between("hq", 1, INT32_MAX), at_least("m", 0),
                                     exactly("d", args.geometry->head_dim)},
                                    kFloatTypes));
  PKV_ASSIGN_OR_RETURN(const std::vector<int32_t> picks,
                       count_picks_sync(stream, first_pass, keys, queries));
  if (picks.empty()) return absl::OkStatus();
  args.queries_as = PKV_FIT_QUERIES_SUM;
  PKV_ASSIGN_OR_RETURN(Sums sums, fit_sums(stream, args, pivot, picks));
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
  struct Array {
    std::span<const float> numbers;
    const float** target;
    int64_t offset;
  };
  Array arrays[] = {
      {numbers_.center(), &params_.center, 0},
      {numbers_.balance(), &params_.balance, 0},
      {numbers_.inv_balance(), &params_.inv_balance, 0},
      {numbers_.signs_1(), &params_.signs_1, 0},
      {numbers_.signs_2(), &params_.signs_2, 0},
      {numbers_.value_center(), &params_.value_center, 0},
      {numbers_.value_signs_1(), &params_.value_signs_1, 0},
      {numbers_.value_signs_2(), &params_.value_signs_2, 0},
  };
  Pieces pieces;
  for (Array& array : arrays) {
    PKV_ASSIGN_OR_RETURN(array.offset,
                         pieces.add<float>(static_cast<int64_t>(array.numbers.size())));
  }
  PKV_ASSIGN_OR_RETURN(buffer_, Buffer::create(device_, PKV_MEMORY_DEVICE, pieces.bytes()));
  PKV_ASSIGN_OR_RETURN(const Stream stream, Stream::create(device_));
  absl::Status copied;
  for (const Array& array : arrays) {
    if (array.numbers.empty() || !copied.ok()) continue;
    auto* target = piece<float>(buffer_, array.offset);
    copied =
        stream.copy(target, array.numbers.data(), static_cast<int64_t>(array.numbers.size_bytes()));
    *array.target = target;
  }
  params_.geometry = &numbers_.geometry();
  // Also after a failure: copies that were enqueued read memory of this object.
  const absl::Status passed = stream.sync();
  return copied.ok() ? passed : copied;
}

absl::StatusOr<std::shared_ptr<const Codec>> Codec::fit_sync(const Stream& stream,
                                                             const Config& config,
                                                             const pkv_tensor& keys,
                                                             const pkv_tensor* queries,
                                                             const pkv_tensor* values) {
  PKV_ASSIGN_OR_RETURN(const int32_t heads, heads_of(keys));
  PKV_ASSIGN_OR_RETURN(const pkv_geometry geometry, config.geometry(heads));
  PKV_ASSIGN_OR_RETURN(const TensorView view, check_tensor(*stream.device(), "keys", keys,
                                                           {exactly("h", heads), at_least("n", 0),
                                                            exactly("d", geometry.head_dim)},
                                                           kFloatTypes));
  pkv_fit_args args{};
  args.struct_size = sizeof args;
  args.queries_as = PKV_FIT_QUERIES_HEADS;
  args.geometry = &geometry;
  args.keys = view.tensor();
  if (queries != nullptr) args.queries = *queries;
  int64_t prefix_shape[3];
  if (values != nullptr) {
    args.values = *values;
  } else if (geometry.v_source == PKV_V_SOURCE_K_PREFIX) {
    args.values = prefix_view(args.keys, geometry.value_dim, prefix_shape);
  } else if (geometry.sketch_bits != 0) {
    return absl::InvalidArgumentError(
        str_cat("values=NULL, accepted: [h, n, dv], for the value sketch of ", geometry.sketch_bits,
                " bits"));
  }
  std::vector<float> pivot(static_cast<std::size_t>(heads) *
                           static_cast<std::size_t>(geometry.head_dim));
  const auto dim = static_cast<std::size_t>(geometry.head_dim);
  for (int32_t head = 0; head < heads; ++head) {
    PKV_RETURN_IF_ERROR(find_pivot(
        stream, view, head, std::span(pivot).subspan(static_cast<std::size_t>(head) * dim, dim)));
  }
  const CodecOptions options = config.codec_options();
  PKV_ASSIGN_OR_RETURN(Sums sums, fit_sums(stream, args, pivot, {}));
  if (options.center) warn_of_few_keys(*stream.device(), sums.key_counts);
  PKV_ASSIGN_OR_RETURN(FittedParams fitted, params_from(geometry, std::move(sums), options));
  std::span<const float> value_center = fitted.value_center;
  if (geometry.sketch_bits == 0) value_center = {};
  PKV_ASSIGN_OR_RETURN(CodecParams numbers,
                       CodecParams::create(geometry, fitted.center, fitted.balance, value_center));
  if (options.fit_picked && (options.center || options.balance) && is_present(args.queries)) {
    PKV_RETURN_IF_ERROR(refit_picked(stream, args, pivot, view, options, numbers, fitted));
    PKV_ASSIGN_OR_RETURN(
        numbers, CodecParams::create(geometry, fitted.center, fitted.balance, value_center));
  }
  return create(stream.device(), std::move(numbers), options);
}

}  // namespace pkv
