// Stage fetch: K and V rows at given positions, byte for byte. docs/algorithm.md, section 7.
#include <cstring>

#include "backends/cpu_ref/check.h"
#include "backends/cpu_ref/device.h"
#include "backends/cpu_ref/stages.h"
#include "backends/cpu_ref/tensor.h"
#include "core/format/records.h"
#include "pariskv/pariskv_backend.hpp"

namespace pkv::cpu_ref {
namespace {

pkv_status check_copy(const pkv_host* host, const char* name, const pkv_tensor& source,
                      const pkv_tensor& target) {
  if (source.ndim == 0) return PKV_OK;
  if (dtype_bytes(source.dtype) != 0 && source.dtype == target.dtype) return PKV_OK;
  return backend::refuse(host, PKV_UNIMPLEMENTED,
                         "%s: dtype=%d into dtype=%d: must be the same, f32 (%d), f16 (%d), "
                         "bf16 (%d), u8 (%d), i32 (%d) or i64 (%d)",
                         name, source.dtype, target.dtype, PKV_DTYPE_F32, PKV_DTYPE_F16,
                         PKV_DTYPE_BF16, PKV_DTYPE_U8, PKV_DTYPE_I32, PKV_DTYPE_I64);
}

pkv_status supports(pkv_backend_device* device, const pkv_fetch_args* args) {
  pkv_status status = check_range(device->host, "k", args->k, 0, format::kMaxK);
  if (status != PKV_OK) return status;
  status = check_copy(device->host, "keys", args->source_keys, args->keys);
  if (status != PKV_OK) return status;
  return check_copy(device->host, "values", args->source_values, args->values);
}

pkv_status scratch_bytes(pkv_backend_device* /*device*/, const pkv_fetch_args* /*args*/,
                         int64_t* out) {
  *out = 0;
  return PKV_OK;
}

// One of K and V.
void copy_rows(const pkv_fetch_args& a, const pkv_tensor& source, const pkv_pages& pages,
               const pkv_tensor& target) {
  if (source.ndim == 0) return;
  const auto bytes = static_cast<size_t>(source.shape[3] * dtype_bytes(source.dtype));
  for (int64_t i = 0; i < a.batch.batch; ++i) {
    for (int32_t head = 0; head < a.kv_heads; ++head) {
      const int32_t* positions = a.positions + (i * a.kv_heads + head) * a.k;
      for (int32_t slot = 0; slot < a.k; ++slot) {
        std::byte* to = row_at(target, i, head, slot);
        if (positions[slot] < 0) {
          std::memset(to, 0, bytes);
        } else {
          std::memcpy(to, token_at(source, pages, a.batch.sequences[i], head, positions[slot]),
                      bytes);
        }
      }
    }
  }
}

pkv_status run(pkv_backend_device* /*device*/, pkv_backend_stream* /*stream*/,
               const pkv_fetch_args* args, void* /*scratch*/) {
  copy_rows(*args, args->source_keys, args->key_pages, args->keys);
  copy_rows(*args, args->source_values, args->value_pages, args->values);
  return PKV_OK;
}

}  // namespace

pkv_fetch_slots fetch_slots() { return {supports, scratch_bytes, run}; }

}  // namespace pkv::cpu_ref
