// docs/algorithm.md, section 7.
#include <doctest/doctest.h>

#include <cstring>
#include <numeric>
#include <vector>

#include "tests/unit/cpu_ref/oracle.h"

namespace pkv {
namespace {

using test::geometry_of;
using test::Oracle;

pkv_tensor bytes_view(std::vector<uint8_t>& bytes, pkv_dtype dtype,
                      const std::vector<int64_t>& shape) {
  pkv_tensor view = {};
  view.data = bytes.data();
  view.device_type = PKV_DEVICE_CPU;
  view.ndim = 4;
  view.dtype = dtype;
  view.shape = shape.data();
  return view;
}

int64_t size_of(pkv_dtype dtype) {
  switch (dtype) {
    case PKV_DTYPE_U8: return 1;
    case PKV_DTYPE_F16:
    case PKV_DTYPE_BF16: return 2;
    case PKV_DTYPE_I64: return 8;
    default: return 4;
  }
}

TEST_CASE("fetch: rows are copied byte for byte, fillers are zero bytes, whatever the dtype") {
  constexpr int64_t kSequences = 3;
  constexpr int64_t kHeads = 2;
  constexpr int64_t kN = 5;
  constexpr int64_t kDim = 8;
  constexpr int64_t kValueDim = 16;
  constexpr int32_t kSlots = 4;
  const std::vector<int32_t> positions = {4, -1, 0, 2, 1, 1, 3, -1, -1, -1, 0, 4, 2, 3, 0, 1};
  const std::vector<int32_t> sequences = {2, 0};
  for (const pkv_dtype dtype :
       {PKV_DTYPE_U8, PKV_DTYPE_F16, PKV_DTYPE_BF16, PKV_DTYPE_F32, PKV_DTYPE_I32, PKV_DTYPE_I64}) {
    CAPTURE(dtype);
    const int64_t size = size_of(dtype);
    std::vector<uint8_t> keys(static_cast<size_t>(kSequences * kHeads * kN * kDim * size));
    std::vector<uint8_t> values(static_cast<size_t>(kSequences * kHeads * kN * kValueDim * size));
    test::Random random(1);
    for (uint8_t& byte : keys) byte = static_cast<uint8_t>(random.bits());
    for (uint8_t& byte : values) byte = static_cast<uint8_t>(random.bits());
    std::vector<uint8_t> out_keys(static_cast<size_t>(2 * kHeads * kSlots * kDim * size), 0xEE);
    std::vector<uint8_t> out_values(static_cast<size_t>(2 * kHeads * kSlots * kValueDim * size),
                                    0xEE);
    // The source keys are [sequences, n, h, d] in memory, seen as [sequences, h, n, d].
    const std::vector<int64_t> strides = {kHeads * kN * kDim, kDim, kHeads * kDim, 1};
    const std::vector<int64_t> key_shape = {kSequences, kHeads, kN, kDim};
    const std::vector<int64_t> value_shape = {kSequences, kHeads, kN, kValueDim};
    const std::vector<int64_t> out_key_shape = {2, kHeads, kSlots, kDim};
    const std::vector<int64_t> out_value_shape = {2, kHeads, kSlots, kValueDim};

    Oracle oracle(geometry_of(8), 1);
    pkv_fetch_args args = {};
    args.struct_size = sizeof args;
    args.kv_heads = kHeads;
    args.batch = oracle.batch_of({kN, kN});
    args.batch.sequences = sequences.data();
    args.source_keys = bytes_view(keys, dtype, key_shape);
    args.source_keys.strides = strides.data();
    args.source_values = bytes_view(values, dtype, value_shape);
    args.positions = positions.data();
    args.k = kSlots;
    args.keys = bytes_view(out_keys, dtype, out_key_shape);
    args.values = bytes_view(out_values, dtype, out_value_shape);
    oracle.run(oracle.table->fetch, args);

    for (int64_t row = 0; row < 2 * kHeads; ++row) {
      const int64_t sequence = sequences[static_cast<size_t>(row / kHeads)];
      const int64_t head = row % kHeads;
      for (int64_t slot = 0; slot < kSlots; ++slot) {
        const int64_t position = positions[static_cast<size_t>(row * kSlots + slot)];
        const std::vector<uint8_t> zero(static_cast<size_t>(kValueDim * size), 0);
        const uint8_t* key = zero.data();
        const uint8_t* value = zero.data();
        if (position >= 0) {
          key = keys.data() + ((sequence * kN + position) * kHeads + head) * kDim * size;
          value = values.data() + ((sequence * kHeads + head) * kN + position) * kValueDim * size;
        }
        const int64_t out = row * kSlots + slot;
        CHECK(std::memcmp(out_keys.data() + out * kDim * size, key,
                          static_cast<size_t>(kDim * size)) == 0);
        CHECK(std::memcmp(out_values.data() + out * kValueDim * size, value,
                          static_cast<size_t>(kValueDim * size)) == 0);
      }
    }

    // Keys alone: values stay as they are.
    const auto before = out_values;
    args.source_values = args.values = pkv_tensor{};
    oracle.run(oracle.table->fetch, args);
    CHECK(out_values == before);
    args.batch.batch = 0;
    args.k = 0;
    oracle.run(oracle.table->fetch, args);
  }
}

}  // namespace
}  // namespace pkv
