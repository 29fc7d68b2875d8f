// Stage fetch: K and V rows at given positions, byte for byte. docs/algorithm.md, section 7.
#include <cstring>

#include "backends/cpu/check_stages.h"
#include "backends/cpu/device.h"
#include "backends/cpu/prefetch.h"
#include "backends/cpu/stages.h"
#include "backends/cpu/tensor.h"
#include "backends/cpu/token_rows.h"
#include "pariskv/pariskv_backend.hpp"

namespace pkv::cpu {
namespace {

pkv_status supports(pkv_backend_device* device, const pkv_fetch_args* args) {
  return check_fetch(device->host, *args);
}

pkv_status scratch_bytes(pkv_backend_device* /*device*/, const pkv_fetch_args* /*args*/,
                         int64_t* out) {
  *out = 0;
  return PKV_OK;
}

// One row's K or V.
void copy_rows(const pkv_fetch_args& a, const pkv_tensor& source, const pkv_pages& pages,
               const pkv_tensor& target, int64_t r) {
  if (source.ndim == 0) return;
  const int64_t i = r / a.kv_heads;
  const auto head = static_cast<int32_t>(r % a.kv_heads);
  const TokenRows rows(source, pages, a.batch.sequences[i], head);
  const int64_t bytes = rows.bytes();
  const int32_t* positions = a.positions + r * a.k;
  for (int32_t slot = 0; slot < a.k; ++slot) {
    if (positions[slot] >= 0) {
      prefetch_range(rows.at(positions[slot]), bytes);
    }
  }
  for (int32_t slot = 0; slot < a.k; ++slot) {
    std::byte* to = row_at(target, i, head, slot);
    if (positions[slot] < 0) {
      std::memset(to, 0, static_cast<size_t>(bytes));
    } else {
      std::memcpy(to, rows.at(positions[slot]), static_cast<size_t>(bytes));
    }
  }
}

pkv_status run(pkv_backend_device* device, pkv_backend_stream* /*stream*/,
               const pkv_fetch_args* args, void* /*scratch*/) {
  return backend::guard(device->host, [&] {
    const int64_t rows = int64_t{args->batch.batch} * args->kv_heads;
    return device->pool.parallel(rows, 1, [&](int64_t r, int32_t /*worker*/) {
      copy_rows(*args, args->source_keys, args->key_pages, args->keys, r);
      copy_rows(*args, args->source_values, args->value_pages, args->values, r);
    });
  });
}

}  // namespace

pkv_fetch_slots fetch_slots() { return {supports, scratch_bytes, run}; }

}  // namespace pkv::cpu
