// Faults of fetch.
#include <algorithm>
#include <cstring>
#include <vector>

#include "tests/conformance/mutants/mutant.h"

namespace pkv::mutants {
namespace {

int64_t slots_of(const pkv_fetch_args& a) { return int64_t{a.batch.batch} * a.kv_heads * a.k; }

int64_t bytes_of(pkv_dtype dtype) {
  switch (dtype) {
    case PKV_DTYPE_U8: return 1;
    case PKV_DTYPE_F16:
    case PKV_DTYPE_BF16: return 2;
    case PKV_DTYPE_I64: return 8;
    default: return 4;
  }
}

int64_t stride_of(const pkv_tensor& tensor, int32_t axis) {
  if (tensor.strides != nullptr) return tensor.strides[axis];
  int64_t stride = 1;
  for (int32_t inner = axis + 1; inner < tensor.ndim; ++inner) stride *= tensor.shape[inner];
  return stride;
}

// Calls change(bytes of the row, how many) for each row of a [b, h, k, width] tensor.
template <class Change>
void for_rows(const pkv_fetch_args& a, const pkv_tensor& tensor, Change change) {
  if (tensor.ndim == 0) return;
  for (int64_t slot = 0; slot < slots_of(a); ++slot) {
    const int64_t index[3] = {slot / a.k / a.kv_heads, slot / a.k % a.kv_heads, slot % a.k};
    int64_t elements = 0;
    for (int axis = 0; axis < 3; ++axis) elements += index[axis] * stride_of(tensor, axis);
    auto* row =
        static_cast<uint8_t*>(tensor.data) + tensor.byte_offset + elements * bytes_of(tensor.dtype);
    change(row, tensor.shape[3] * bytes_of(tensor.dtype), a.positions[slot]);
  }
}

// Runs with positions that `change` has been through.
template <class Change>
pkv_status run_at(pkv_backend_device* device, pkv_backend_stream* stream,
                  const pkv_fetch_args* args, void* scratch, Change change) {
  pkv_fetch_args changed = *args;
  std::vector<int32_t> positions(args->positions, args->positions + slots_of(*args));
  for (int32_t& position : positions) position = change(position);
  changed.positions = positions.data();
  return sound().fetch.run(device, stream, &changed, scratch);
}

pkv_status shift_rows(pkv_backend_device* device, pkv_backend_stream* stream,
                      const pkv_fetch_args* args, void* scratch) {
  return run_at(device, stream, args, scratch,
                [](int32_t position) { return position > 0 ? position - 1 : position; });
}

pkv_status serve_row_zero(pkv_backend_device* device, pkv_backend_stream* stream,
                          const pkv_fetch_args* args, void* scratch) {
  return run_at(device, stream, args, scratch,
                [](int32_t position) { return std::max(position, 0); });
}

// As a kernel that moves 16 bytes at a time and forgets what is left.
void copy_whole_units(const pkv_fetch_args& a) {
  const auto lose_end = [](uint8_t* row, int64_t bytes, int32_t /*position*/) {
    std::memset(row + bytes / 16 * 16, 0xEE, static_cast<size_t>(bytes % 16));
  };
  for_rows(a, a.keys, lose_end);
  for_rows(a, a.values, lose_end);
}

// As one that moves floats: signalling NaNs come out quiet.
void quieten(const pkv_fetch_args& a) {
  if (a.keys.ndim == 0 || a.keys.dtype != PKV_DTYPE_F32) return;
  for_rows(a, a.keys, [](uint8_t* row, int64_t bytes, int32_t /*position*/) {
    for (int64_t i = 0; i < bytes; i += 4) {
      uint32_t bits = 0;
      std::memcpy(&bits, row + i, 4);
      if ((bits & 0x7fffffffU) > 0x7f800000U) bits |= 0x00400000U;
      std::memcpy(row + i, &bits, 4);
    }
  });
}

// As a kernel whose offsets of bytes are 32 bits wide.
void wrap_offsets(const pkv_fetch_args& a) {
  if (a.source_keys.data == nullptr) return;
  const auto* base = static_cast<const uint8_t*>(a.source_keys.data) + a.source_keys.byte_offset;
  const int64_t token = stride_of(a.source_keys, 2) * bytes_of(a.source_keys.dtype);
  for_rows(a, a.keys, [&](uint8_t* row, int64_t bytes, int32_t position) {
    const int64_t offset = position * token;
    const auto wrapped = static_cast<uint32_t>(offset);
    if (position >= 0 && offset > wrapped) {
      std::memcpy(row, base + wrapped, static_cast<size_t>(bytes));
    }
  });
}

// As one that looks a position ahead.
void read_behind(const pkv_fetch_args& a) {
  [[maybe_unused]] const volatile int32_t next =
      static_cast<const volatile int32_t*>(a.positions)[slots_of(a)];
}

void skip_values(pkv_fetch_args& a) { a.source_values.ndim = 0; }
void forget_source_strides(pkv_fetch_args& a) { forget_strides(a.source_keys); }
void forget_target_strides(pkv_fetch_args& a) { forget_strides(a.keys); }

void use_entries(pkv_fetch_args& a) {
  static thread_local std::vector<int32_t> entries;
  entries.clear();
  for (int32_t i = 0; i < a.batch.batch; ++i) entries.push_back(i);
  a.batch.sequences = entries.data();
}

void turn_pages_late(pkv_fetch_args& a) {
  static thread_local std::vector<const void*> keys;
  static thread_local std::vector<const void*> values;
  a.key_pages.table = late_pages(a.key_pages.table, a.key_pages.table_stride, a.batch.sequences,
                                 a.batch.batch, keys);
  a.value_pages.table = late_pages(a.value_pages.table, a.value_pages.table_stride,
                                   a.batch.sequences, a.batch.batch, values);
}
void use_key_offset(pkv_fetch_args& a) { a.value_pages.offset = a.key_pages.offset; }

constexpr auto kFetch = &pkv_backend::fetch;

constexpr Mutant kMutants[] = {
    {"fetch_shifted", [](pkv_backend& t) { t.fetch.run = shift_rows; }},
    {"fetch_filler", [](pkv_backend& t) { t.fetch.run = serve_row_zero; }},
    {"fetch_whole_units",
     [](pkv_backend& t) { t.fetch.run = run_spoiled<kFetch, copy_whole_units>; }},
    {"fetch_quietens_nan", [](pkv_backend& t) { t.fetch.run = run_spoiled<kFetch, quieten>; }},
    {"fetch_wraps_offsets",
     [](pkv_backend& t) { t.fetch.run = run_spoiled<kFetch, wrap_offsets>; }},
    {"fetch_reads_behind", [](pkv_backend& t) { t.fetch.run = run_spoiled<kFetch, read_behind>; }},
    {"fetch_skips_values", [](pkv_backend& t) { t.fetch.run = run_changed<kFetch, skip_values>; }},
    {"fetch_ignores_source_strides",
     [](pkv_backend& t) { t.fetch.run = run_changed<kFetch, forget_source_strides>; }},
    {"fetch_ignores_target_strides",
     [](pkv_backend& t) { t.fetch.run = run_changed<kFetch, forget_target_strides>; }},
    {"fetch_late_pages",
     [](pkv_backend& t) { t.fetch.run = run_changed<kFetch, turn_pages_late>; }},
    {"fetch_key_offset", [](pkv_backend& t) { t.fetch.run = run_changed<kFetch, use_key_offset>; }},
    {"fetch_uses_entries", [](pkv_backend& t) { t.fetch.run = run_changed<kFetch, use_entries>; }},
};

}  // namespace

std::span<const Mutant> fetch_mutants() { return kMutants; }

}  // namespace pkv::mutants
