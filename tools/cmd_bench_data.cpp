#include "tools/cmd_bench_data.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "tools/element.h"
#include "tools/interrupt.h"

namespace pkv::cli {
namespace {

constexpr uint64_t kSeed = 20260801;
constexpr int64_t kPattern = 1 << 20;   // elements
constexpr int64_t kFillRows = 1 << 16;  // between two looks at signals

// To nearest, ties to even. |x| < 8: neither infinities nor NaN.
uint16_t to_bfloat(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  return static_cast<uint16_t>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16);
}

// The same; numbers below the normal ones of binary16 become 0.
uint16_t to_half(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  const uint32_t sign = bits >> 16 & 0x8000U;
  const uint32_t magnitude = bits & 0x7fffffffU;
  if (magnitude < 0x38800000U) return static_cast<uint16_t>(sign);
  const uint32_t rounded = magnitude + 0xfffU + ((magnitude >> 13) & 1U);
  return static_cast<uint16_t>(sign | ((rounded - 0x38000000U) >> 13));
}

void store(pkv_dtype dtype, float x, char* target) {
  if (dtype == PKV_DTYPE_F32) {
    std::memcpy(target, &x, sizeof x);
    return;
  }
  const uint16_t bits = dtype == PKV_DTYPE_F16 ? to_half(x) : to_bfloat(x);
  std::memcpy(target, &bits, sizeof bits);
}

}  // namespace

uint64_t Random::bits() {
  state_ += UINT64_C(0x9e3779b97f4a7c15);
  uint64_t z = state_;
  z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
  z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
  return z ^ (z >> 31);
}

// Four uniform numbers of 16 bits, their sum brought to mean 0 and variance 1.
float Random::bell() {
  const uint64_t x = bits();
  const uint64_t sum = (x & 0xffff) + (x >> 16 & 0xffff) + (x >> 32 & 0xffff) + (x >> 48);
  return (static_cast<float>(sum) * 0x1p-16F - 2.0F) * 1.7320508F;
}

BenchData::BenchData(const Engine& engine, const BenchShape& shape)
    : engine_(engine),
      shape_(shape),
      random_(kSeed),
      pattern_(static_cast<size_t>(kPattern * dtype_bytes(shape.dtype))),
      zone_shape_{shape.batch, shape.kv_heads, shape.n, shape.dim},
      token_rows_(shape.is_cpu ? 1 : 2),
      zone_strides_{shape.kv_heads * shape.zone_tokens * token_rows_ * shape.dim,
                    shape.zone_tokens * token_rows_ * shape.dim, token_rows_ * shape.dim, 1},
      dense_shape_{{shape.batch, shape.kv_heads, kBenchDense[0], shape.dim},
                   {shape.batch, shape.kv_heads, kBenchDense[1], shape.dim}},
      query_shape_{shape.batch, shape.query_heads, shape.dim} {
  const int64_t bytes = dtype_bytes(shape.dtype);
  for (int64_t i = 0; i < kPattern; ++i) {
    store(shape.dtype, random_.bell(), pattern_.data() + i * bytes);
  }
}

absl::StatusOr<std::unique_ptr<BenchData>> BenchData::create(const Engine& engine,
                                                             const BenchShape& shape) {
  std::unique_ptr<BenchData> data(new BenchData(engine, shape));
  for (int64_t i = data->token_rows_; i <= 2; ++i) {
    CLI_ASSIGN_OR_RETURN(
        Memory memory,
        data->create_rows(shape.zone_kind, data->token_rows_ * shape.rows() * shape.zone_tokens));
    data->zone_.push_back(std::move(memory));
  }
  for (int64_t i = 0; i < 4 * shape.layers; ++i) {
    CLI_ASSIGN_OR_RETURN(
        Memory memory, data->create_rows(PKV_ALLOC_DEVICE, shape.rows() * kBenchDense[i % 4 / 2]));
    data->dense_.push_back(std::move(memory));
  }
  const int64_t query_rows = shape.calls * shape.batch * shape.query_heads;
  for (const int32_t kind : {PKV_ALLOC_HOST, PKV_ALLOC_DEVICE}) {
    CLI_ASSIGN_OR_RETURN(Memory memory, data->create_rows(kind, query_rows));
    auto& target = kind == PKV_ALLOC_HOST ? data->new_queries_ : data->queries_;
    target = std::make_unique<Memory>(std::move(memory));
  }
  return data;
}

absl::StatusOr<Memory> BenchData::create_rows(int32_t kind, int64_t rows) {
  CLI_ASSIGN_OR_RETURN(Memory memory, Memory::create(engine_, kind, rows * shape_.row_bytes));
  const bool is_staged = kind == PKV_ALLOC_DEVICE;  // the host may not write there
  const int64_t staged_rows = is_staged ? std::min(kFillRows, rows) : 0;
  CLI_ASSIGN_OR_RETURN(const Memory stage,
                       Memory::create(engine_, PKV_ALLOC_HOST, staged_rows * shape_.row_bytes));
  for (int64_t begin = 0; begin < rows; begin += kFillRows) {
    CLI_RETURN_IF_ERROR(check_interrupt());
    const int64_t count = std::min(kFillRows, rows - begin);
    char* target = static_cast<char*>(memory.data()) + begin * shape_.row_bytes;
    fill(is_staged ? stage.data() : target, count);
    if (is_staged) CLI_RETURN_IF_ERROR(copy(target, stage.data(), count * shape_.row_bytes));
  }
  return memory;
}

absl::Status BenchData::copy(void* target, const void* source, int64_t bytes) {
  CLI_RETURN_IF_ERROR(
      from_library(pkv_device_copy(engine_.stream(), target, source, bytes), About::kBackend));
  return engine_.sync();
}

void BenchData::fill(void* rows, int64_t count) {
  auto* target = static_cast<char*>(rows);
  const auto places = static_cast<uint64_t>(kPattern - shape_.dim);
  for (int64_t row = 0; row < count; ++row) {
    const auto from = static_cast<int64_t>(random_.bits() % places);
    std::memcpy(target + row * shape_.row_bytes, pattern_.data() + from * dtype_bytes(shape_.dtype),
                static_cast<size_t>(shape_.row_bytes));
  }
}

absl::Status BenchData::new_queries() {
  const int64_t rows = shape_.calls * shape_.batch * shape_.query_heads;
  fill(new_queries_->data(), rows);
  return copy(queries_->data(), new_queries_->data(), rows * shape_.row_bytes);
}

absl::Status BenchData::drift_queries(int64_t layer) {
  const int64_t size = shape_.batch * shape_.query_heads * shape_.dim;
  const int64_t bytes = dtype_bytes(shape_.dtype);
  const auto fresh = static_cast<float>(shape_.drift);
  const auto kept = static_cast<float>(std::sqrt(1 - shape_.drift * shape_.drift));
  if (last_queries_.empty()) {
    last_queries_.resize(static_cast<size_t>(shape_.layers));
    for (auto& query : last_queries_) {
      query.resize(static_cast<size_t>(size));
      for (float& x : query) x = random_.bell();
    }
  }
  auto* target = static_cast<char*>(new_queries_->data());
  for (int64_t call = 0; call < shape_.calls; ++call) {
    for (float& x : last_queries_[static_cast<size_t>((layer + call) % shape_.layers)]) {
      x = kept * x + fresh * random_.bell();
      store(shape_.dtype, x, target);
      target += bytes;
    }
  }
  return copy(queries_->data(), new_queries_->data(), shape_.calls * size * bytes);
}

pkv_tensor BenchData::zone(int which, int64_t layer) const {
  const bool is_apart = token_rows_ == 1;
  const int64_t row = layer * shape_.layer_shift * token_rows_ + (is_apart ? 0 : which);
  auto* data = static_cast<char*>(zone_[is_apart ? static_cast<size_t>(which) : 0].data()) +
               row * shape_.row_bytes;
  return engine_.tensor(shape_.zone_kind, data, shape_.dtype, zone_shape_, zone_strides_);
}

pkv_tensor BenchData::dense(int64_t layer, int part, int which) const {
  void* data = dense_[static_cast<size_t>(4 * layer + 2 * part + which)].data();
  return engine_.tensor(PKV_ALLOC_DEVICE, data, shape_.dtype, dense_shape_[part]);
}

pkv_tensor BenchData::query(int64_t call) const {
  const int64_t bytes = shape_.batch * shape_.query_heads * shape_.row_bytes;
  return engine_.tensor(PKV_ALLOC_DEVICE, static_cast<char*>(queries_->data()) + call * bytes,
                        shape_.dtype, query_shape_);
}

const void* BenchData::read_from(int64_t layer, int64_t bytes) const {
  constexpr int64_t kAlignment = 64;
  const int64_t room = shape_.rows() * shape_.zone_tokens * shape_.row_bytes - bytes;
  const int64_t begin = layer * bytes % (room + 1) / kAlignment * kAlignment;
  return static_cast<const char*>(zone_.front().data()) + begin;
}

}  // namespace pkv::cli
