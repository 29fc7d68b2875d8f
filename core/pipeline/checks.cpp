#include "core/pipeline/checks.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <string>

#include "core/base/checked.h"
#include "core/base/text.h"
#include "core/codec/geometry.h"
#include "core/format/pages.h"
#include "core/format/records.h"
#include "core/format/rotation.h"
#include "core/runtime/row_bytes.h"

namespace pkv {
namespace {

constexpr pkv_device_type kCpuReads[] = {PKV_DEVICE_CPU, PKV_DEVICE_CUDA_HOST, PKV_DEVICE_ROCM_HOST,
                                         PKV_DEVICE_CUDA_MANAGED};
constexpr pkv_device_type kCudaReads[] = {PKV_DEVICE_CUDA, PKV_DEVICE_CUDA_HOST,
                                          PKV_DEVICE_CUDA_MANAGED};
constexpr pkv_device_type kRocmReads[] = {PKV_DEVICE_ROCM, PKV_DEVICE_ROCM_HOST};

std::span<const pkv_device_type> readable_types(const pkv_backend_device_info& info) {
  switch (info.device_type) {
    case PKV_DEVICE_CUDA: return kCudaReads;
    case PKV_DEVICE_ROCM: return kRocmReads;
    case PKV_DEVICE_CPU: return kCpuReads;
    default: return {&info.device_type, 1};
  }
}

constexpr uintptr_t kStoreAlignment = 256;

absl::Status check_paged(const pkv_geometry& geometry, const pkv_store& store) {
  PKV_RETURN_IF_ERROR(check_absent("store.base", store.base, "with store.pages"));
  PKV_RETURN_IF_ERROR(check_range("store.pages_stride", store.pages_stride, 0, INT64_MAX));
  PKV_RETURN_IF_ERROR(
      check_range("store.capacity", store.capacity, format::kMinPageCapacity, format::kMaxTokens));
  const int64_t stride = std::max(geometry.sketch_stride, 1);
  if (std::has_single_bit(static_cast<uint64_t>(store.capacity)) && store.capacity % stride == 0) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      str_cat("store.capacity=", store.capacity,
              ", accepted with pages: a power of two, and a multiple of sketch_stride=", stride));
}

}  // namespace

absl::Status check_range(std::string_view name, int64_t value, int64_t min, int64_t max) {
  if (value >= min && value <= max) return absl::OkStatus();
  return absl::InvalidArgumentError(str_cat(name, "=", value, ", accepted: ", min, "..", max));
}

absl::Status check_index(std::string_view name, int64_t value, int64_t min, int64_t max) {
  if (value >= min && value <= max) return absl::OkStatus();
  const std::string accepted = max < min ? "none" : str_cat(min, "..", max);
  return absl::OutOfRangeError(str_cat(name, "=", value, ", accepted: ", accepted));
}

absl::Status check_pointer(std::string_view name, const void* pointer, int64_t count) {
  if (pointer != nullptr || count == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(str_cat(name, "=NULL, accepted: ", count, " elements"));
}

absl::Status check_absent(std::string_view name, const void* pointer, std::string_view reason) {
  if (pointer == nullptr) return absl::OkStatus();
  return absl::InvalidArgumentError(str_cat(name, " is given, accepted: NULL ", reason));
}

absl::StatusOr<TensorView> check_tensor(const Device& device, std::string_view name,
                                        const pkv_tensor& tensor, std::initializer_list<Axis> axes,
                                        std::span<const pkv_dtype> dtypes, Access access) {
  PKV_ASSIGN_OR_RETURN(TensorView view, TensorView::check(name, &tensor, axes, dtypes, access));
  if (!view.is_empty() && access != Access::kElsewhere) {
    const pkv_backend_device_info& info = device.info();
    PKV_RETURN_IF_ERROR(check_device(name, tensor, readable_types(info), info.device_id));
  }
  return view;
}

absl::Status check_query_heads(int32_t query_heads, int32_t kv_heads) {
  if (query_heads >= 1 && query_heads % kv_heads == 0 && query_heads / kv_heads <= 128) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      str_cat("query_heads=", query_heads, ", accepted: kv_heads=", kv_heads, " times 1..128"));
}

absl::Status check_scale(float scale) {
  if (scale > 0.0F && scale <= 1e6F) return absl::OkStatus();
  return absl::InvalidArgumentError(
      str_cat("scale=", scale, ", accepted: above 0, at most 1000000"));
}

absl::Status check_soft_cap(float soft_cap) {
  if (soft_cap >= 0.0F && soft_cap <= 1e6F) return absl::OkStatus();
  return absl::InvalidArgumentError(
      str_cat("soft_cap=", soft_cap, ", accepted: 0 (none) up to 1000000"));
}

absl::Status check_codec(const pkv_codec_params& codec) {
  if (codec.geometry == nullptr) {
    return absl::InvalidArgumentError("codec.geometry=NULL, accepted: a geometry");
  }
  const pkv_geometry& g = *codec.geometry;
  PKV_RETURN_IF_ERROR(check_geometry(g));
  const int64_t numbers = int64_t{g.kv_heads} * g.head_dim;
  PKV_RETURN_IF_ERROR(check_pointer("codec.center", codec.center, numbers));
  PKV_RETURN_IF_ERROR(check_pointer("codec.balance", codec.balance, numbers));
  PKV_RETURN_IF_ERROR(check_pointer("codec.inv_balance", codec.inv_balance, numbers));
  PKV_RETURN_IF_ERROR(check_pointer("codec.signs_1", codec.signs_1, g.head_dim));
  const format::RotationPlan plan = format::rotation_plan(g.head_dim, g.rounds);
  if (!plan.is_power_of_two || plan.rounds == 2) {
    PKV_RETURN_IF_ERROR(check_pointer("codec.signs_2", codec.signs_2, g.head_dim));
  }
  if (g.sketch_bits == 0) return absl::OkStatus();
  const int64_t value_numbers = int64_t{g.kv_heads} * g.value_dim;
  PKV_RETURN_IF_ERROR(check_pointer("codec.value_center", codec.value_center, value_numbers));
  PKV_RETURN_IF_ERROR(check_pointer("codec.value_signs_1", codec.value_signs_1, g.value_dim));
  if (!format::rotation_plan(g.value_dim, 1).is_power_of_two) {
    PKV_RETURN_IF_ERROR(check_pointer("codec.value_signs_2", codec.value_signs_2, g.value_dim));
  }
  return absl::OkStatus();
}

absl::Status check_store(const Device& device, const pkv_geometry& geometry,
                         const pkv_store& store) {
  if (store.pages != nullptr) {
    PKV_RETURN_IF_ERROR(check_paged(geometry, store));
  } else {
    PKV_RETURN_IF_ERROR(check_pointer("store.base", store.base, 1));
    if (reinterpret_cast<uintptr_t>(store.base) % kStoreAlignment != 0) {
      return absl::InvalidArgumentError("store.base is not aligned, accepted: multiples of 256");
    }
    PKV_RETURN_IF_ERROR(check_range("store.capacity", store.capacity, 0, format::kMaxTokens));
  }
  PKV_ASSIGN_OR_RETURN(const int64_t row_bytes, store_row_bytes(device, geometry, store.capacity));
  if (store.row_bytes == row_bytes) return absl::OkStatus();
  return absl::InvalidArgumentError(str_cat("store.row_bytes=", store.row_bytes, ", accepted: ",
                                            row_bytes, " for capacity=", store.capacity));
}

absl::Status check_store_rows(const pkv_store& store, int64_t rows) {
  return checked_product("key records", {{"rows", rows}, {"row_bytes", store.row_bytes}}).status();
}

absl::Status check_sequences(std::span<const int32_t> sequences) {
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    PKV_RETURN_IF_ERROR(check_index(str_cat("sequences[", i, "]"), sequences[i], 0, INT32_MAX));
  }
  return absl::OkStatus();
}

absl::Status check_lengths(std::span<const int64_t> lengths, int64_t max_length) {
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    PKV_RETURN_IF_ERROR(check_index(str_cat("lengths[", i, "]"), lengths[i], 0, max_length));
  }
  return absl::OkStatus();
}

int64_t sequences_up_to_last(std::span<const int32_t> sequences) {
  int64_t last = -1;
  for (const int32_t sequence : sequences) last = std::max(last, int64_t{sequence});
  return last + 1;
}

absl::StatusOr<int64_t> rows_of(std::span<const int32_t> sequences, int32_t kv_heads) {
  return checked_product("rows",
                         {{"sequences", sequences_up_to_last(sequences)}, {"kv_heads", kv_heads}});
}

absl::StatusOr<BatchNumbers> check_batch(const Stream& stream, const pkv_batch& batch,
                                         int32_t kv_heads, Sequences sequences) {
  PKV_RETURN_IF_ERROR(check_range("batch", batch.batch, 0, INT32_MAX));
  PKV_RETURN_IF_ERROR(check_range("max_length", batch.max_length, 0, format::kMaxTokens));
  PKV_RETURN_IF_ERROR(
      checked_product("rows", {{"batch", batch.batch}, {"kv_heads", kv_heads}}).status());
  BatchNumbers numbers;
  PKV_RETURN_IF_ERROR(check_pointer("lengths", batch.lengths, batch.batch));
  PKV_ASSIGN_OR_RETURN(numbers.lengths, read_back(stream, batch.lengths, batch.batch));
  PKV_RETURN_IF_ERROR(check_lengths(numbers.lengths, batch.max_length));
  if (sequences == Sequences::kUnused) return numbers;
  PKV_RETURN_IF_ERROR(check_pointer("sequences", batch.sequences, batch.batch));
  PKV_ASSIGN_OR_RETURN(numbers.sequences, read_back(stream, batch.sequences, batch.batch));
  PKV_RETURN_IF_ERROR(check_sequences(numbers.sequences));
  return numbers;
}

}  // namespace pkv
