#include "tests/conformance/mutants/single.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "tests/conformance/half.h"

namespace pkv::mutants {
namespace {

using conformance::dtype_bytes;

uint8_t* address(const pkv_tensor& tensor, std::initializer_list<int64_t> leading, int64_t j) {
  int64_t elements = j;
  int32_t axis = 0;
  for (const int64_t index : leading) elements += index * tensor.strides[axis++];
  return static_cast<uint8_t*>(tensor.data) + tensor.byte_offset +
         elements * dtype_bytes(tensor.dtype);
}

void fwht(float* x, int32_t size) {
  for (int32_t H = 1; H < size; H *= 2) {
    for (int32_t i = 0; i < size; ++i) {
      if ((i & H) != 0) continue;
      const float a = x[i];
      const float b = x[i + H];
      x[i] = a + b;
      x[i + H] = a - b;
    }
  }
}

void scaled_fwht(float* x, int32_t size) {
  fwht(x, size);
  const auto c = static_cast<float>(1.0 / std::sqrt(static_cast<double>(size)));
  for (int32_t i = 0; i < size; ++i) x[i] *= c;
}

void multiply(std::vector<float>& x, const float* signs) {
  for (size_t j = 0; j < x.size(); ++j) x[j] *= signs[j];
}

int32_t largest_power(int32_t dim) {
  int32_t size = 1;
  while (2 * size <= dim) size *= 2;
  return size;
}

}  // namespace

float element(pkv_dtype dtype, const uint8_t* vector, int64_t j) {
  const uint8_t* at = vector + j * dtype_bytes(dtype);
  if (dtype == PKV_DTYPE_F32) {
    float value = 0;
    std::memcpy(&value, at, sizeof value);
    return value;
  }
  uint16_t bits = 0;
  std::memcpy(&bits, at, sizeof bits);
  return conformance::half_to_float(dtype, bits);
}

float element(const pkv_tensor& tensor, std::initializer_list<int64_t> leading, int64_t j) {
  return element(tensor.dtype, address(tensor, leading, 0), j);
}

const uint8_t* vector_at(const pkv_tensor& tensor, std::initializer_list<int64_t> leading) {
  return address(tensor, leading, 0);
}

const uint8_t* vector_at(const pkv_pages& pages, int64_t sequence, int32_t head, int64_t position) {
  const void* page = pages.table[sequence * pages.table_stride + position / pages.page_tokens];
  return static_cast<const uint8_t*>(page) + pages.offset + head * pages.head_bytes +
         position % pages.page_tokens * pages.token_bytes;
}

float capped(float logit, float soft_cap) {
  return soft_cap == 0.0F ? logit : soft_cap * std::tanh(logit / soft_cap);
}

const float* codec_row(const pkv_codec_params& codec, const float* numbers, int64_t entry,
                       int32_t kv_head, int32_t dim) {
  const int64_t set = codec.set_of == nullptr ? 0 : codec.set_of[entry];
  return numbers + (set * codec.geometry->kv_heads + kv_head) * dim;
}

void set_element(const pkv_tensor& tensor, std::initializer_list<int64_t> leading, int64_t j,
                 float value) {
  uint8_t* at = address(tensor, leading, j);
  if (tensor.dtype == PKV_DTYPE_F32) {
    std::memcpy(at, &value, sizeof value);
    return;
  }
  const uint16_t bits = conformance::float_to_half(tensor.dtype, value);
  std::memcpy(at, &bits, sizeof bits);
}

Levels polar_levels() {
  return {{.0425086671F, .1280436506F, .2152012185F, .3053238204F, .4002712711F, .5030220635F,
           .6193476459F, .7648350837F},
          3};
}

Levels sketch_levels(int32_t sketch_bits) {
  if (sketch_bits == 2) return {{.4527800346F, 1.5104176085F}, 1};
  return {{11, 37, 61, 87, 117, 151, 193, 255}, 3};
}

std::vector<int32_t> sample_positions(const pkv_geometry& geometry, int64_t n, int64_t most) {
  const int64_t p = std::max(geometry.sketch_stride, 1);
  const int64_t m = (n + p - 1) / p;
  const int64_t c = std::min(m, most);
  std::vector<int32_t> positions;
  for (int64_t i = 0; i < c; ++i) positions.push_back(static_cast<int32_t>(i * m / c * p));
  return positions;
}

CanonicalRecord::CanonicalRecord(const pkv_geometry& g, const pkv_store& store, int64_t row,
                                 int64_t position) {
  const int32_t plane = g.head_dim / 8;
  const int32_t sketch = g.sketch_bits == 0 ? 0 : g.value_dim / 8;
  const int32_t sizes[8] = {plane,
                            2,
                            (g.codec == PKV_CODEC_SCALAR5 ? 4 : 3) * plane,
                            g.codec == PKV_CODEC_POLAR4 ? 2 * plane : 2,
                            sketch,
                            std::max(g.sketch_bits - 1, 0) * sketch,
                            2,
                            2};
  for (int p = 0; p < 8; ++p) planes_[p].resize(static_cast<size_t>(sizes[p]));
  const auto numbers = [this](int p) { return reinterpret_cast<uint16_t*>(planes_[p].data()); };
  pkv_records records = {};
  records.struct_size = sizeof records;
  records.row_tokens = 1;
  records.signs = planes_[0].data();
  records.vote_factors = numbers(1);
  records.codes = planes_[2].data();
  records.factors = numbers(3);
  records.value_signs = planes_[4].data();
  records.value_codes = planes_[5].data();
  records.value_factors = numbers(6);
  records.value_norms = numbers(7);
  sound().store_export(nullptr, nullptr, &g, &store, row, position, 1, &records);
}

std::vector<float> CanonicalRecord::decoded(int signs, int codes, const Levels& levels) const {
  const size_t plane = planes_[signs].size();
  std::vector<float> out(8 * plane);
  for (size_t j = 0; j < out.size(); ++j) {
    const auto bit = [&](int p, size_t byte) { return (planes_[p][byte] >> (j % 8)) & 1; };
    int code = 0;
    for (int32_t p = 0; p < levels.planes; ++p) {
      code |= bit(codes, static_cast<size_t>(p) * plane + j / 8) << p;
    }
    const float level = levels.of[static_cast<size_t>(code)];
    out[j] = bit(signs, j / 8) != 0 ? level : -level;
  }
  return out;
}

float CanonicalRecord::number(int plane, int32_t i) const {
  uint16_t bits = 0;
  std::memcpy(&bits, planes_[plane].data() + 2 * i, sizeof bits);
  return conformance::bf16_to_float(bits);
}

void rotate(std::vector<float>& x, const float* signs_1, const float* signs_2, int32_t rounds) {
  const auto D = static_cast<int32_t>(x.size());
  const int32_t size = largest_power(D);
  multiply(x, signs_1);
  if (size == D) {
    fwht(x.data(), D);
    if (rounds == 1) return;
    multiply(x, signs_2);
    fwht(x.data(), D);
    for (float& value : x) value /= static_cast<float>(D);
    return;
  }
  scaled_fwht(x.data(), size);
  multiply(x, signs_2);
  scaled_fwht(x.data() + (D - size), size);
}

void unrotate(std::vector<float>& y, const float* signs_1, const float* signs_2) {
  const auto D = static_cast<int32_t>(y.size());
  const int32_t size = largest_power(D);
  if (size == D) {
    fwht(y.data(), D);
    for (float& value : y) value /= static_cast<float>(D);
  } else {
    scaled_fwht(y.data() + (D - size), size);
    multiply(y, signs_2);
    scaled_fwht(y.data(), size);
  }
  multiply(y, signs_1);
}

}  // namespace pkv::mutants
