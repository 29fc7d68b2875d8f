#include "tests/model/content.h"

#include <algorithm>
#include <array>
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

std::vector<int32_t> center_of(const Shape& shape, int32_t layer, int32_t kv_head) {
  std::vector<int32_t> numbers(static_cast<std::size_t>(shape.head_dim));
  add_noise(random_of(What::kCenter, 0, layer, kv_head), 120, numbers);
  return numbers;
}

std::vector<float> scaled(const std::vector<int32_t>& numbers) {
  std::vector<float> row(numbers.size());
  for (std::size_t j = 0; j < row.size(); ++j) row[j] = static_cast<float>(numbers[j]) / 64.0F;
  return row;
}

const std::array<float, 65536>& f16_numbers() {
  static const auto all = [] {
    std::array<float, 65536> numbers{};
    for (std::size_t bits = 0; bits < numbers.size(); ++bits) {
      numbers[bits] = conformance::half_to_float(PKV_DTYPE_F16, static_cast<uint16_t>(bits));
    }
    return numbers;
  }();
  return all;
}

uint16_t half_of(pkv_dtype dtype, float number) {
  uint32_t wide;
  std::memcpy(&wide, &number, sizeof wide);
  if (dtype == PKV_DTYPE_BF16) {  // exact for multiples of 1/64 below 4, and for NaN
    return static_cast<uint16_t>(wide >> 16);
  }
  const uint32_t exponent = wide >> 23 & 0xff;
  if ((wide & 0x1fff) == 0 && exponent >= 113 && exponent <= 142) {  // exact and normal
    return static_cast<uint16_t>((wide >> 16 & 0x8000) | (exponent - 112) << 10 |
                                 (wide >> 13 & 0x3ff));
  }
  return conformance::float_to_half(dtype, number);
}

}  // namespace

void read_numbers(pkv_dtype dtype, const std::byte* from, std::size_t count, float* to) {
  if (count == 0) return;
  if (dtype == PKV_DTYPE_F32) {
    std::memcpy(to, from, 4 * count);
    return;
  }
  const std::array<float, 65536>& f16 = f16_numbers();
  for (std::size_t i = 0; i < count; ++i) {
    uint16_t bits;
    std::memcpy(&bits, from + 2 * i, sizeof bits);
    if (dtype == PKV_DTYPE_F16) {
      to[i] = f16[bits];
    } else {
      const uint32_t wide = uint32_t{bits} << 16;
      std::memcpy(to + i, &wide, sizeof wide);
    }
  }
}

void write_numbers(pkv_dtype dtype, std::span<const float> from, std::byte* to) {
  if (from.empty()) return;
  if (dtype == PKV_DTYPE_F32) {
    std::memcpy(to, from.data(), from.size_bytes());
    return;
  }
  for (const float number : from) {
    const uint16_t bits = half_of(dtype, number);
    std::memcpy(to, &bits, sizeof bits);
    to += sizeof bits;
  }
}

Tensor::Tensor(pkv_dtype dtype, std::vector<int64_t> shape)
    : dtype_(dtype), shape_(std::move(shape)), size_(1) {
  for (const int64_t extent : shape_) size_ *= extent;
  bytes_.resize(static_cast<std::size_t>(size_ * dtype_bytes(dtype)));
}

float Tensor::get(int64_t element) const {
  float number = 0;
  const std::size_t bytes = dtype_ == PKV_DTYPE_F32 ? 4 : 2;
  read_numbers(dtype_, bytes_.data() + static_cast<std::size_t>(element) * bytes, 1, &number);
  return number;
}

void Tensor::set(int64_t element, float number) { set(element, {&number, 1}); }

void Tensor::set(int64_t first, std::span<const float> numbers) {
  write_numbers(dtype_, numbers, at(first));
}

void Tensor::fill(float number) {
  if (size_ == 0) return;
  set(0, number);
  const std::size_t bytes = bytes_.size() / static_cast<std::size_t>(size_);
  for (std::size_t done = bytes; done < bytes_.size(); done *= 2) {
    std::memcpy(bytes_.data() + done, bytes_.data(), std::min(done, bytes_.size() - done));
  }
}

std::vector<float> Tensor::numbers() const {
  std::vector<float> numbers(static_cast<std::size_t>(size_));
  read_numbers(dtype_, bytes_.data(), numbers.size(), numbers.data());
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

pkv_tensor Tensor::host_view() const {
  pkv_tensor tensor = view();
  tensor.device_type = PKV_DEVICE_CPU;
  return tensor;
}

pkv_tensor no_tensor() {
  pkv_tensor tensor{};
  tensor.device_type = Tensor::device_type;
  return tensor;
}

Content::Content(const Shape& shape, std::shared_ptr<KeptRows> kept)
    : shape_(shape), kept_(std::move(kept)) {
  for (int32_t layer = 0; layer < shape.layers; ++layer) {
    for (int32_t head = 0; head < shape.kv_heads; ++head) {
      centers_.push_back(center_of(shape, layer, head));
    }
  }
}

std::vector<float> Content::key(uint64_t token, int32_t layer, int32_t kv_head) const {
  if ((token & kPlanted) != 0) {
    return query((token & ~kPlanted) | kAimed, layer, kv_head * shape_.group());
  }
  const bool is_known = layer < shape_.layers;  // calls for one outside are refused
  std::vector<int32_t> numbers =
      is_known ? centers_[static_cast<std::size_t>(layer * shape_.kv_heads + kv_head)]
               : center_of(shape_, layer, kv_head);
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

std::size_t Content::key_bytes() const {
  return static_cast<std::size_t>(shape_.head_dim * dtype_bytes(shape_.dtype));
}
std::size_t Content::value_bytes() const {
  return static_cast<std::size_t>(shape_.value_dim * dtype_bytes(shape_.dtype));
}

Content::Rows Content::rows(uint64_t token, int32_t layer, std::vector<std::byte>& room) const {
  const auto heads = static_cast<std::size_t>(shape_.kv_heads);
  const std::size_t bytes = heads * (key_bytes() + value_bytes());
  const auto make = [&](std::byte* to) {
    for (int32_t head = 0; head < shape_.kv_heads; ++head, to += key_bytes()) {
      write_numbers(shape_.dtype, key(token, layer, head), to);
    }
    for (int32_t head = 0; head < shape_.kv_heads; ++head, to += value_bytes()) {
      write_numbers(shape_.dtype, value(token, layer, head), to);
    }
  };
  const std::byte* all;
  if (kept_ != nullptr) {
    all = kept_->get(token, layer, bytes, make);
  } else {
    room.resize(bytes);
    make(room.data());
    all = room.data();
  }
  return {all, all + heads * key_bytes()};
}

// K or V of all tokens and heads; [n, heads, width], or [heads, n, width].
Tensor Content::gather_rows(std::span<const uint64_t> tokens, int32_t layer, bool values,
                            bool heads_first) const {
  const auto n = static_cast<int64_t>(tokens.size());
  const int64_t heads = shape_.kv_heads;
  const int64_t width = values ? shape_.value_dim : shape_.head_dim;
  const std::size_t bytes = values ? value_bytes() : key_bytes();
  Tensor out(shape_.dtype, heads_first ? std::vector<int64_t>{heads, n, width}
                                       : std::vector<int64_t>{n, heads, width});
  if (bytes == 0) return out;
  std::vector<std::byte> room;
  for (int64_t t = 0; t < n; ++t) {
    const Rows rows = this->rows(tokens[static_cast<std::size_t>(t)], layer, room);
    const std::byte* from = values ? rows.values : rows.keys;
    for (int64_t head = 0; head < heads; ++head, from += bytes) {
      const int64_t at = heads_first ? head * n + t : t * heads + head;
      std::memcpy(out.at(at * width), from, bytes);
    }
  }
  return out;
}

Tensor Content::keys(std::span<const uint64_t> tokens, int32_t layer) const {
  return gather_rows(tokens, layer, false, false);
}
Tensor Content::values(std::span<const uint64_t> tokens, int32_t layer) const {
  return gather_rows(tokens, layer, true, false);
}
Tensor Content::head_keys(std::span<const uint64_t> tokens, int32_t layer) const {
  return gather_rows(tokens, layer, false, true);
}
Tensor Content::head_values(std::span<const uint64_t> tokens, int32_t layer) const {
  return gather_rows(tokens, layer, true, true);
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
