// What the argument checks of several stages share. Refusals are INVALID_ARGUMENT unless said
// otherwise; their text names the argument, the value and what is accepted.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/dtype.h"
#include "core/base/status.h"
#include "core/base/tensor.h"
#include "core/runtime/device.h"
#include "core/runtime/stream.h"
#include "pariskv/pariskv_backend.h"

namespace pkv {

// Every dtype that a tensor can have: rows that are only copied.
inline constexpr pkv_dtype kAnyTypes[6] = {PKV_DTYPE_F32, PKV_DTYPE_F16, PKV_DTYPE_BF16,
                                           PKV_DTYPE_U8,  PKV_DTYPE_I32, PKV_DTYPE_I64};

// "k=-1, accepted: 0..65536"
absl::Status check_range(std::string_view name, int64_t value, int64_t min, int64_t max);
// The same with OUT_OF_RANGE: a sequence, a KV head, a position.
absl::Status check_index(std::string_view name, int64_t value, int64_t min, int64_t max);

// `count` elements are read or written behind the pointer: NULL only for none.
absl::Status check_pointer(std::string_view name, const void* pointer, int64_t count);
// For an argument that a call does not use.
absl::Status check_absent(std::string_view name, const void* pointer, std::string_view reason);

// A tensor in memory that the device can read (or write: Access::kOutput).
absl::StatusOr<TensorView> check_tensor(const Device& device, std::string_view name,
                                        const pkv_tensor& tensor, std::initializer_list<Axis> axes,
                                        std::span<const pkv_dtype> dtypes,
                                        Access access = Access::kInput);
// ndim 0 says that there is none.
inline bool is_present(const pkv_tensor& tensor) { return tensor.ndim != 0; }

// hq is h times 1..128.
absl::Status check_query_heads(int32_t query_heads, int32_t kv_heads);
absl::Status check_scale(float scale);
absl::Status check_soft_cap(float soft_cap);

// The pointers that the geometry needs, none that it lacks.
absl::Status check_codec(const pkv_codec_params& codec);
absl::Status check_store(const Device& device, const pkv_geometry& geometry,
                         const pkv_store& store);
// That `rows` rows lie in memory whose offsets fit an int64.
absl::Status check_store_rows(const pkv_store& store, int64_t rows);

// `count` numbers in memory of the device. Waits for the stream.
template <class Number>
absl::StatusOr<std::vector<Number>> read_back(const Stream& stream, const Number* numbers,
                                              int64_t count) {
  std::vector<Number> out(static_cast<std::size_t>(count));
  PKV_RETURN_IF_ERROR(stream.copy(out.data(), numbers, count * int64_t{sizeof(Number)}));
  PKV_RETURN_IF_ERROR(stream.sync());
  return out;
}

// The batch of a single stage as the device holds it.
struct BatchNumbers {
  std::vector<int32_t> sequences;  // [b]; empty if the stage does not ask for them
  std::vector<int64_t> lengths;    // [b]
};
enum class Sequences { kRead, kUnused };
// Checks batch and reads it back. OUT_OF_RANGE: a sequence < 0, a length not in 0..max_length.
absl::StatusOr<BatchNumbers> check_batch(const Stream& stream, const pkv_batch& batch,
                                         int32_t kv_heads, Sequences sequences);
// What entries say about sequences >= 0. `capacity`: tokens of a row of the store.
absl::Status check_sequences(std::span<const int32_t> sequences);
absl::Status check_lengths(std::span<const int64_t> lengths, int64_t max_length);
// How many sequences there must be for the highest of these to be one; 0 for none.
int64_t sequences_up_to_last(std::span<const int32_t> sequences);
absl::StatusOr<int64_t> rows_of(std::span<const int32_t> sequences, int32_t kv_heads);

}  // namespace pkv
