// fetch on plans and as a stage. docs/algorithm.md, section 7.
#include "core/base/dtype.h"
#include "core/pipeline/stages.h"
#include "tests/unit/pipeline/step_tools.h"

namespace pkv::test {
namespace {

struct Setup {
  Setup() { require_ok(step.retrieve(query)); }
  Machine machine;
  Config config = config_of({{"head_dim", "16"}, {"value_dim", "8"}, {"k", "6"}, {"tail", "drop"}});
  Zone zone{{40, 25, 3}, 2, 50, 16, 8};
  std::shared_ptr<Index> index = index_with(machine, config, 2, zone, 64);
  Step step{machine, index, config, {2, 0}, 4};
  Array query{{2, 4, 16}, 0.25F};
};

}  // namespace

TEST_CASE("fetch: every row is the source's at its position, unused slots are 0") {
  Setup setup;
  require_ok(setup.step.fetch(setup.zone));
  const auto positions = setup.step.positions->values();
  int64_t used = 0;
  for (int64_t i = 0; i < 2; ++i) {
    const int64_t sequence = i == 0 ? 2 : 0;
    for (int64_t h = 0; h < 2; ++h) {
      for (int64_t slot = 0; slot < 6; ++slot) {
        const int32_t position = positions[static_cast<std::size_t>((i * 2 + h) * 6 + slot)];
        const float* key = setup.step.row_keys->data() + ((i * 2 + h) * 6 + slot) * 16;
        const float* value = setup.step.row_values->data() + ((i * 2 + h) * 6 + slot) * 8;
        for (int64_t j = 0; j < 16; ++j) {
          const int64_t row = (sequence * 2 + h) * 50 + position;
          CHECK(key[j] == (position < 0 ? 0.0F : setup.zone.keys.data()[row * 16 + j]));
          if (j < 8)
            CHECK(value[j] == (position < 0 ? 0.0F : setup.zone.values.data()[row * 8 + j]));
        }
        if (position >= 0) ++used;
      }
    }
  }
  CHECK(used == 2 * 3 + 2 * 6);
}

TEST_CASE("fetch: a position outside is named with its slot, and nothing is written") {
  Setup setup;
  const auto clean = setup.step.positions->values();
  for (const int32_t wrong : {-2, 40, 45, INT32_MAX, INT32_MIN}) {
    std::copy(clean.begin(), clean.end(), setup.step.positions->data());
    setup.step.positions->data()[(1 * 2 + 1) * 6 + 4] = wrong;  // entry 1 is sequence 0: 40 tokens
    check_refused(setup.step.fetch(setup.zone), absl::StatusCode::kOutOfRange,
                  {"entry 1, KV head 1, slot 4", "=" + std::to_string(wrong), "-1", "0..39"});
  }
  CHECK(std::isnan(setup.step.row_keys->data()[0]));
  // Within the sequence, but outside the source.
  std::copy(clean.begin(), clean.end(), setup.step.positions->data());
  setup.step.positions->data()[(1 * 2 + 0) * 6 + 0] = 30;
  Zone shorter({30, 25, 3}, 2, 30, 16, 8);
  check_refused(setup.step.fetch(shorter), absl::StatusCode::kOutOfRange, {"=30", "0..29"});
}

TEST_CASE("fetch: hits stay good when tokens are appended in between") {
  Setup setup;
  Setup quiet;
  Zone::View keys, values;
  Zone::view(setup.zone.keys, 0, 0, 10, keys);
  Zone::view(setup.zone.values, 0, 0, 10, values);
  require_ok(setup.index->append(setup.machine.stream, 0, keys.tensor, &values.tensor,
                                 Index::Mode::kSync));
  require_ok(setup.step.fetch(setup.zone));
  require_ok(quiet.step.fetch(quiet.zone));
  CHECK(setup.step.row_keys->numbers() == quiet.step.row_keys->numbers());
  // A reset makes them stale: positions past the length are refused.
  require_ok(setup.index->reset(setup.machine.stream, 0));
  check_refused(setup.step.fetch(setup.zone), absl::StatusCode::kOutOfRange,
                {"entry 1", "accepted: -1"});
}

TEST_CASE("fetch: bytes are kept for every dtype, NaN payloads and -0 included") {
  Machine machine;
  for (const pkv_dtype dtype :
       {PKV_DTYPE_F32, PKV_DTYPE_F16, PKV_DTYPE_BF16, PKV_DTYPE_U8, PKV_DTYPE_I32, PKV_DTYPE_I64}) {
    const int64_t size = dtype_bytes(dtype);
    // An odd offset: rows are aligned to the element at most.
    std::vector<uint8_t> source(static_cast<std::size_t>(100 * 72 * size + size)),
        target(static_cast<std::size_t>(4 * 72 * size));
    for (std::size_t i = 0; i < source.size(); ++i)
      source[i] = static_cast<uint8_t>(i * 37 + i / 251);
    const int64_t source_shape[4] = {1, 1, 100, 72}, target_shape[4] = {1, 1, 4, 72};
    const auto tensor = [&](std::vector<uint8_t>& bytes, const int64_t* shape) {
      pkv_tensor t{};
      t.data = bytes.data();
      t.device_type = PKV_DEVICE_CPU;
      t.ndim = 4;
      t.dtype = dtype;
      t.shape = shape;
      return t;
    };
    const int32_t sequences[1] = {0}, positions[4] = {99, 0, -1, 50};
    const int64_t lengths[1] = {100};
    pkv_fetch_args args{};
    args.struct_size = sizeof args;
    args.kv_heads = 1;
    args.batch = {1, 0, sequences, lengths, 100};
    args.source_keys = tensor(source, source_shape);
    args.source_keys.byte_offset = static_cast<uint64_t>(size);
    args.keys = tensor(target, target_shape);
    args.positions = positions;
    args.k = 4;
    require_ok(stage_fetch_sync(machine.stream, args));
    for (std::size_t slot = 0; slot < 4; ++slot) {
      const auto row = static_cast<std::size_t>(72 * size);
      for (std::size_t i = 0; i < row; ++i) {
        const auto from =
            static_cast<std::size_t>(positions[slot]) * row + i + static_cast<std::size_t>(size);
        CHECK(target[slot * row + i] == (positions[slot] < 0 ? 0 : source[from]));
      }
    }
  }
}

TEST_CASE("fetch: K and V have widths and dtypes of their own, and each is checked") {
  Setup setup;
  const auto fetch_with = [&](pkv_rows source, pkv_rows rows) {
    return fetch(*setup.step.plan, setup.machine.stream, source, setup.step.hits, rows);
  };
  pkv_rows source{}, rows{};
  source.keys = setup.zone.keys.tensor();
  source.values = setup.zone.values.tensor();
  rows.keys = setup.step.row_keys->tensor();
  rows.values = setup.step.row_values->tensor();
  require_ok(fetch_with(source, rows));
  const auto invalid = absl::StatusCode::kInvalidArgument;
  pkv_rows swapped = source;
  std::swap(swapped.keys, swapped.values);
  check_refused(fetch_with(swapped, rows), invalid, {"source keys", "width", "8", "16"});
  pkv_rows other = rows;
  other.values.dtype = PKV_DTYPE_I32;
  check_refused(fetch_with(source, other), invalid, {"rows values", "i32", "f32"});
  pkv_rows no_values = rows;
  no_values.values.ndim = 0;
  check_refused(fetch_with(source, no_values), invalid, {"values", "both or none"});
  pkv_rows keys_only = source;
  keys_only.values.ndim = 0;
  require_ok(fetch_with(keys_only, no_values));
  Array few_sequences({2, 2, 50, 16});
  pkv_rows few = source;
  few.keys = few_sequences.tensor();
  check_refused(fetch_with(few, rows), invalid, {"source keys", "sequences", "2", "3"});
  pkv_rows same = rows;
  same.keys = setup.zone.keys.tensor();
  same.keys.shape = setup.step.row_keys->shape().data();
  check_refused(fetch_with(source, same), invalid, {"rows keys", "source keys"});
  pkv_hits nothing{};
  check_refused(fetch(*setup.step.plan, setup.machine.stream, source, nothing, rows), invalid,
                {"hits.positions"});
}

TEST_CASE("fetch: strided source and rows equal packed ones") {
  Setup packed;
  Setup strided;
  require_ok(packed.step.fetch(packed.zone));
  // The source as [sequence, token, head, D + 3].
  Array source({3, 50, 2, 19}, kNan);
  for (int64_t s = 0; s < 3; ++s) {
    for (int64_t h = 0; h < 2; ++h) {
      for (int64_t t = 0; t < 50; ++t) {
        for (int64_t j = 0; j < 16; ++j) {
          source.data()[((s * 50 + t) * 2 + h) * 19 + j] =
              strided.zone.keys.data()[((s * 2 + h) * 50 + t) * 16 + j];
        }
      }
    }
  }
  Array rows_memory({2, 2, 6, 24}, 7.0F);
  const int64_t shape[4] = {3, 2, 50, 16}, strides[4] = {1900, 19, 38, 1};
  const int64_t row_shape[4] = {2, 2, 6, 16}, row_strides[4] = {288, 144, 24, 1};
  pkv_rows from{}, to{};
  from.keys = source.tensor();
  from.keys.shape = shape;
  from.keys.strides = strides;
  to.keys = rows_memory.tensor();
  to.keys.shape = row_shape;
  to.keys.strides = row_strides;
  require_ok(fetch(*strided.step.plan, strided.machine.stream, from, strided.step.hits, to));
  for (int64_t row = 0; row < 24; ++row) {
    for (int64_t j = 0; j < 24; ++j) {
      const float wanted = j < 16 ? packed.step.row_keys->data()[row * 16 + j] : 7.0F;
      CHECK(rows_memory.data()[row * 24 + j] == wanted);
    }
  }
}

}  // namespace pkv::test
