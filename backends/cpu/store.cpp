// docs/format.md, section 1, to and from layout.h. Blocks of keys go to the pool.
#include "backends/cpu/store.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "backends/cpu/check.h"
#include "backends/cpu/device.h"
#include "backends/cpu/layout.h"
#include "core/format/half.h"
#include "pariskv/pariskv_backend.hpp"

namespace pkv::cpu {
namespace {

constexpr int64_t kGrainBlocks = 16;  // blocks of keys that are worth a task
constexpr uint64_t kOnes = 0x0101010101010101;

// Entry b: byte j is bit j of b.
constexpr std::array<uint64_t, 256> kSpread = [] {
  std::array<uint64_t, 256> table{};
  for (int b = 0; b < 256; ++b) {
    for (int j = 0; j < 8; ++j) table[b] |= static_cast<uint64_t>((b >> j) & 1) << (8 * j);
  }
  return table;
}();

// Bit j is the lowest bit of byte j.
constexpr uint8_t gather_bits(uint64_t bytes) {
  return static_cast<uint8_t>(((bytes & kOnes) * 0x0102040810204080) >> 56);
}

// Nibbles of `dim` coordinates as in layout.h, made of `planes` bit planes of dim/8 bytes each;
// plane p gives bit p.
void pack(const uint8_t* const* plane, int32_t planes, int32_t dim, uint8_t* record) {
  uint8_t nibble[format::kMaxHeadDim];
  for (int32_t b = 0; b < dim / 8; ++b) {
    uint64_t bytes = 0;
    for (int32_t p = 0; p < planes; ++p) bytes |= kSpread[plane[p][b]] << p;
    std::memcpy(nibble + 8 * b, &bytes, sizeof bytes);
  }
  for (int32_t i = 0; i < dim / 2; ++i) {
    record[i] = static_cast<uint8_t>(nibble[i] | nibble[i + dim / 2] << 4);
  }
}

void unpack(const uint8_t* record, int32_t planes, int32_t dim, uint8_t* const* plane) {
  uint8_t nibble[format::kMaxHeadDim];
  for (int32_t i = 0; i < dim / 2; ++i) {
    nibble[i] = record[i] & 0xf;
    nibble[i + dim / 2] = record[i] >> 4;
  }
  for (int32_t b = 0; b < dim / 8; ++b) {
    uint64_t bytes = 0;
    std::memcpy(&bytes, nibble + 8 * b, sizeof bytes);
    for (int32_t p = 0; p < planes; ++p) plane[p][b] = gather_bits(bytes >> p);
  }
}

// The canonical planes of a sign plane and its codes, in the order of a nibble's bits.
template <class Byte>
std::array<Byte*, 4> nibble_planes(Byte* signs, Byte* codes, int32_t plane_bytes) {
  return {codes, codes + plane_bytes, codes + 2 * plane_bytes, signs};
}

void copy_bytes(void* target, const void* source, int64_t bytes) {
  std::memcpy(target, source, static_cast<size_t>(bytes));
}

// One row and a range of canonical planes, whose entry 0 is position `begin`.
class RowCopy {
 public:
  RowCopy(const pkv_geometry& geometry, const pkv_store& store, int64_t row, int64_t begin,
          const pkv_records& planes)
      : geometry_(geometry),
        layout_(make_layout(geometry, store.capacity)),
        sizes_(format::record_sizes(geometry)),
        records_(record_row(store, layout_, geometry.kv_heads, row / geometry.kv_heads,
                            static_cast<int32_t>(row % geometry.kv_heads))),
        begin_(begin),
        first_sketch_(format::sketch_count(geometry, begin)),
        planes_(planes) {}
  RowCopy(const RowCopy&) = delete;  // records_ points to layout_
  RowCopy& operator=(const RowCopy&) = delete;

  void import_key(int64_t position) const {
    const int64_t i = position - begin_;
    const int32_t S = layout_.subspaces;
    const uint8_t* signs = planes_.signs + i * sizes_.signs;
    const uint8_t* codes = planes_.codes + i * sizes_.codes;
    const uint16_t* factors = planes_.factors + i * layout_.factors_per_key;
    uint8_t* piece = records_.piece(position);
    const int64_t local = records_.store.local(position);
    for (int32_t s = 0; s < S; ++s) piece[layout_.sign_byte(local, s)] = signs[s];
    uint8_t* record = records_.record(position);
    if (geometry_.codec == PKV_CODEC_SCALAR5) {
      const uint8_t* plane[4] = {codes, codes + S, codes + 2 * S, codes + 3 * S};
      pack(plane, 4, geometry_.head_dim, record);
      copy_bytes(record + layout_.record_signs, signs, S);
    } else {
      pack(nibble_planes(signs, codes, S).data(), 4, geometry_.head_dim, record);
    }
    copy_bytes(records_.factor(position), factors, sizes_.factors);
    if (geometry_.vote == PKV_VOTE_GRADED) {
      copy_bytes(piece + layout_.vote_factor(local), planes_.vote_factors + i, 2);
    } else {
      set_bad(piece, layout_, local, (factors[0] & 0x7fff) > 0x7f80);
    }
    if (geometry_.value_norm != 0) {
      copy_bytes(records_.norm(position), planes_.value_norms + i, 2);
    }
    if (has_sketch(geometry_, position)) import_sketch(position / geometry_.sketch_stride);
  }

  void export_key(int64_t position) const {
    const int64_t i = position - begin_;
    const int32_t S = layout_.subspaces;
    uint8_t* signs = planes_.signs + i * sizes_.signs;
    uint8_t* codes = planes_.codes + i * sizes_.codes;
    const uint8_t* record = records_.record(position);
    if (geometry_.codec == PKV_CODEC_SCALAR5) {
      uint8_t* const plane[4] = {codes, codes + S, codes + 2 * S, codes + 3 * S};
      unpack(record, 4, geometry_.head_dim, plane);
    } else {
      unpack(record, 3, geometry_.head_dim, nibble_planes(signs, codes, S).data());
    }
    const uint8_t* piece = records_.piece(position);
    const int64_t local = records_.store.local(position);
    for (int32_t s = 0; s < S; ++s) signs[s] = piece[layout_.sign_byte(local, s)];
    copy_bytes(planes_.factors + i * layout_.factors_per_key, records_.factor(position),
               sizes_.factors);
    if (geometry_.vote == PKV_VOTE_GRADED) {
      copy_bytes(planes_.vote_factors + i, piece + layout_.vote_factor(local), 2);
    }
    if (geometry_.value_norm != 0) {
      copy_bytes(planes_.value_norms + i, records_.norm(position), 2);
    }
    if (has_sketch(geometry_, position)) export_sketch(position / geometry_.sketch_stride);
  }

 private:
  void import_sketch(int64_t entry) const {
    const int64_t i = entry - first_sketch_;
    const uint8_t* signs = planes_.value_signs + i * sizes_.value_signs;
    const uint8_t* codes = planes_.value_codes + i * sizes_.value_codes;
    uint8_t* sketch = records_.sketch(entry);
    if (geometry_.sketch_bits == 2) {
      copy_bytes(sketch, signs, sizes_.value_signs);
      copy_bytes(sketch + sizes_.value_signs, codes, sizes_.value_codes);
    } else {
      pack(nibble_planes(signs, codes, sizes_.value_signs).data(), 4, geometry_.value_dim, sketch);
    }
    copy_bytes(records_.sketch_factor(entry), planes_.value_factors + i, 2);
  }

  void export_sketch(int64_t entry) const {
    const int64_t i = entry - first_sketch_;
    uint8_t* signs = planes_.value_signs + i * sizes_.value_signs;
    uint8_t* codes = planes_.value_codes + i * sizes_.value_codes;
    const uint8_t* sketch = records_.sketch(entry);
    if (geometry_.sketch_bits == 2) {
      copy_bytes(signs, sketch, sizes_.value_signs);
      copy_bytes(codes, sketch + sizes_.value_signs, sizes_.value_codes);
    } else {
      unpack(sketch, 4, geometry_.value_dim,
             nibble_planes(signs, codes, sizes_.value_signs).data());
    }
    copy_bytes(planes_.value_factors + i, records_.sketch_factor(entry), 2);
  }

  const pkv_geometry& geometry_;
  Layout layout_;
  format::RecordSizes sizes_;
  RecordRow records_;
  int64_t begin_;
  int64_t first_sketch_;
  const pkv_records& planes_;
};

// visit(position) for [begin, begin + count); a block of 64 positions belongs to one worker, since
// its keys share the bytes of the mask.
template <class Visit>
pkv_status for_each_key(const Pool& pool, int64_t begin, int64_t count, const Visit& visit) {
  const int64_t first_block = begin / kBlockKeys;
  const int64_t end = begin + count;
  const int64_t blocks = count == 0 ? 0 : (end - 1) / kBlockKeys - first_block + 1;
  return pool.parallel(blocks, kGrainBlocks, [&](int64_t i, int32_t) {
    const int64_t block = (first_block + i) * kBlockKeys;
    const int64_t last = std::min(end, block + kBlockKeys);
    for (int64_t position = std::max(begin, block); position < last; ++position) visit(position);
  });
}

}  // namespace

pkv_status store_row_bytes(pkv_backend_device* device, const pkv_geometry* geometry,
                           int64_t capacity, int64_t* out) {
  pkv_status status = check_geometry(device->host, *geometry);
  if (status != PKV_OK) return status;
  status = check_range(device->host, "capacity", capacity, 0, format::kMaxTokens);
  if (status != PKV_OK) return status;
  *out = make_layout(*geometry, capacity).row_bytes;
  return PKV_OK;
}

pkv_status store_import(pkv_backend_device* device, pkv_backend_stream* /*stream*/,
                        const pkv_geometry* geometry, const pkv_store* store, int64_t row,
                        int64_t begin, int64_t count, const pkv_records* source) {
  return backend::guard(device->host, [&] {
    const RowCopy copy(*geometry, *store, row, begin, *source);
    return for_each_key(device->pool, begin, count,
                        [&copy](int64_t position) { copy.import_key(position); });
  });
}

pkv_status store_export(pkv_backend_device* device, pkv_backend_stream* /*stream*/,
                        const pkv_geometry* geometry, const pkv_store* store, int64_t row,
                        int64_t begin, int64_t count, const pkv_records* target) {
  return backend::guard(device->host, [&] {
    const RowCopy copy(*geometry, *store, row, begin, *target);
    return for_each_key(device->pool, begin, count,
                        [&copy](int64_t position) { copy.export_key(position); });
  });
}

}  // namespace pkv::cpu
