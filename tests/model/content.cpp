#include "tests/model/content.h"

#include <cstring>
#include <limits>
#include <utility>

#include "tests/conformance/half.h"
#include "tests/conformance/random.h"

namespace pkv::cache_model {
namespace {

using conformance::dtype_bytes;
using conformance::Random;

enum class What : uint64_t { kKey = 1, kValue = 2, kQuery = 3, kCenter = 4 };

Random random_of(What what, uint64_t token, int64_t layer, int64_t head) {
  Random mix(token * 4 + static_cast<uint64_t>(what));
  return Random(mix.next() ^ (static_cast<uint64_t>(layer) << 40) ^
                (static_cast<uint64_t>(head) << 50));
}

// Whole numbers around 0, at most `limit`, more often small ones.
void add_noise(Random random, int32_t limit, std::vector<int32_t>& out) {
  for (std::size_t j = 0; j < out.size(); j += 2) {
    const uint64_t bits = random.next();
    for (std::size_t i = 0; i < 2 && j + i < out.size(); ++i) {
      const auto part = static_cast<uint32_t>(bits >> (32 * i));
      const auto sum = static_cast<int32_t>((part & 0xffff) + (part >> 16)) - 65535;
      out[j + i] += sum * limit / 65536;
    }
  }
}

std::vector<float> scaled(const std::vector<int32_t>& numbers) {
  std::vector<float> row(numbers.size());
  for (std::size_t j = 0; j < row.size(); ++j) row[j] = static_cast<float>(numbers[j]) / 64.0F;
  return row;
}

}  // namespace

Tensor::Tensor(pkv_dtype dtype, std::vector<int64_t> shape)
    : dtype_(dtype), shape_(std::move(shape)), size_(1) {
  for (const int64_t extent : shape_) size_ *= extent;
  bytes_.resize(static_cast<std::size_t>(size_ * dtype_bytes(dtype)));
}

float Tensor::get(int64_t element) const {
  const auto at = static_cast<std::size_t>(element);
  if (dtype_ == PKV_DTYPE_F32) {
    float number;
    std::memcpy(&number, bytes_.data() + 4 * at, sizeof number);
    return number;
  }
  uint16_t bits;
  std::memcpy(&bits, bytes_.data() + 2 * at, sizeof bits);
  return conformance::half_to_float(dtype_, bits);
}

void Tensor::set(int64_t element, float number) {
  const auto at = static_cast<std::size_t>(element);
  if (dtype_ == PKV_DTYPE_F32) {
    std::memcpy(bytes_.data() + 4 * at, &number, sizeof number);
    return;
  }
  uint16_t bits;
  if (dtype_ == PKV_DTYPE_BF16) {  // exact for multiples of 1/64 below 4, and for NaN
    uint32_t wide;
    std::memcpy(&wide, &number, sizeof wide);
    bits = static_cast<uint16_t>(wide >> 16);
  } else {
    bits = conformance::float_to_half(dtype_, number);
  }
  std::memcpy(bytes_.data() + 2 * at, &bits, sizeof bits);
}

void Tensor::set(int64_t first, std::span<const float> numbers) {
  if (numbers.empty()) return;
  if (dtype_ == PKV_DTYPE_F32) {
    std::memcpy(bytes_.data() + 4 * static_cast<std::size_t>(first), numbers.data(),
                numbers.size_bytes());
    return;
  }
  for (const float number : numbers) set(first++, number);
}

void Tensor::fill(float number) {
  for (int64_t i = 0; i < size_; ++i) set(i, number);
}

std::vector<float> Tensor::numbers() const {
  std::vector<float> numbers(static_cast<std::size_t>(size_));
  for (int64_t i = 0; i < size_; ++i) numbers[static_cast<std::size_t>(i)] = get(i);
  return numbers;
}

pkv_tensor Tensor::view() const {
  pkv_tensor tensor = no_tensor();
  tensor.data = const_cast<std::byte*>(bytes_.data());
  tensor.ndim = static_cast<int32_t>(shape_.size());
  tensor.dtype = dtype_;
  tensor.shape = shape_.data();
  return tensor;
}

pkv_tensor no_tensor() {
  pkv_tensor tensor{};
  tensor.device_type = PKV_DEVICE_CPU;
  return tensor;
}

std::vector<float> Content::key(uint64_t token, int32_t layer, int32_t kv_head) const {
  if ((token & kPlanted) != 0) {
    return query((token & ~kPlanted) | kAimed, layer, kv_head * shape_.group());
  }
  std::vector<int32_t> numbers(static_cast<std::size_t>(shape_.head_dim));
  add_noise(random_of(What::kCenter, 0, layer, kv_head), 120, numbers);
  add_noise(random_of(What::kKey, token & ~kNan, layer, kv_head), 130, numbers);
  std::vector<float> row = scaled(numbers);
  if ((token & kNan) != 0) row[0] = std::numeric_limits<float>::quiet_NaN();
  return row;
}

std::vector<float> Content::value(uint64_t token, int32_t layer, int32_t kv_head) const {
  std::vector<int32_t> numbers(static_cast<std::size_t>(shape_.value_dim));
  add_noise(random_of(What::kValue, token, layer, kv_head), 250, numbers);
  return scaled(numbers);
}

std::vector<float> Content::query(uint64_t token, int32_t layer, int32_t query_head) const {
  const int32_t head = (token & kAimed) != 0 ? query_head / shape_.group() : query_head;
  std::vector<int32_t> numbers(static_cast<std::size_t>(shape_.head_dim));
  add_noise(random_of(What::kQuery, token, layer, head), 250, numbers);
  return scaled(numbers);
}

namespace {

// row(token, head) of all tokens and heads; [n, heads, width], or [heads, n, width].
template <class Row>
Tensor gather(pkv_dtype dtype, std::span<const uint64_t> tokens, int32_t heads, int32_t width,
              bool heads_first, Row row) {
  const auto n = static_cast<int64_t>(tokens.size());
  Tensor out(dtype, heads_first ? std::vector<int64_t>{heads, n, width}
                                : std::vector<int64_t>{n, heads, width});
  for (int64_t t = 0; t < n; ++t) {
    for (int32_t head = 0; head < heads; ++head) {
      const int64_t at = heads_first ? head * n + t : t * heads + head;
      out.set(at * width, row(tokens[static_cast<std::size_t>(t)], head));
    }
  }
  return out;
}

}  // namespace

Tensor Content::keys(std::span<const uint64_t> tokens, int32_t layer) const {
  return gather(shape_.dtype, tokens, shape_.kv_heads, shape_.head_dim, false,
                [&](uint64_t token, int32_t head) { return key(token, layer, head); });
}
Tensor Content::values(std::span<const uint64_t> tokens, int32_t layer) const {
  return gather(shape_.dtype, tokens, shape_.kv_heads, shape_.value_dim, false,
                [&](uint64_t token, int32_t head) { return value(token, layer, head); });
}
Tensor Content::head_keys(std::span<const uint64_t> tokens, int32_t layer) const {
  return gather(shape_.dtype, tokens, shape_.kv_heads, shape_.head_dim, true,
                [&](uint64_t token, int32_t head) { return key(token, layer, head); });
}
Tensor Content::head_values(std::span<const uint64_t> tokens, int32_t layer) const {
  return gather(shape_.dtype, tokens, shape_.kv_heads, shape_.value_dim, true,
                [&](uint64_t token, int32_t head) { return value(token, layer, head); });
}
Tensor Content::queries(std::span<const uint64_t> tokens, int32_t layer) const {
  return gather(shape_.query_dtype, tokens, shape_.query_heads, shape_.head_dim, false,
                [&](uint64_t token, int32_t head) { return query(token, layer, head); });
}
Tensor Content::head_queries(std::span<const uint64_t> tokens, int32_t layer) const {
  return gather(shape_.query_dtype, tokens, shape_.query_heads, shape_.head_dim, true,
                [&](uint64_t token, int32_t head) { return query(token, layer, head); });
}

}  // namespace pkv::cache_model
