// Encode of the GPU kernels against cpu_ref: pages, a codec set per entry, ragged calls, views that
// are not aligned to pairs. docs/algorithm.md, section 3: exact.
#include <cstring>
#include <vector>

#include "backends/gpu/views.h"
#include "core/format/half.h"
#include "doctest/doctest.h"
#include "tests/unit/cpu_ref/oracle.h"
#include "tests/unit/gpu/gpu_store.h"
#include "tests/unit/gpu/run_kernel.h"

namespace pkv::gpu_host {
namespace {

using test::geometry_of;
using test::Oracle;

constexpr int32_t kSequences = 3;
constexpr int64_t kTokens = 200;  // three pages of 64 and a part of one
constexpr int64_t kStride = 90;   // tokens of a call, of which entries have fewer

// A view [b, h, t, dim] whose elements may begin at an odd one.
struct View {
  View(int32_t dtype, int64_t b, int64_t h, int64_t dim, bool is_odd, uint32_t seed)
      : shape{b, h, kStride, dim}, type(dtype) {
    test::Random random(seed);
    row = dim + (is_odd ? 1 : 0);
    strides[3] = 1;
    strides[2] = row;
    strides[1] = kStride * row;
    strides[0] = h * strides[1];
    first = is_odd ? 1 : 0;
    numbers.resize(static_cast<size_t>(first + b * strides[0]));
    for (float& x : numbers) x = random.bell();
  }

  float& at(int64_t i, int64_t head, int64_t t, int64_t j) {
    return numbers[static_cast<size_t>(first + i * strides[0] + head * strides[1] + t * row + j)];
  }

  pkv_tensor tensor() {
    bytes.clear();
    for (const float x : numbers) {
      const uint16_t half =
          type == PKV_DTYPE_F16 ? format::float_to_f16(x) : format::float_to_bf16(x);
      const auto* from = type == PKV_DTYPE_F32 ? reinterpret_cast<const std::byte*>(&x)
                                               : reinterpret_cast<const std::byte*>(&half);
      bytes.insert(bytes.end(), from, from + dtype_bytes(type));
    }
    pkv_tensor result = {};
    result.data = bytes.data();
    result.device_type = PKV_DEVICE_CPU;
    result.ndim = 4;
    result.dtype = type;
    result.shape = shape;
    result.strides = strides;
    result.byte_offset = static_cast<uint64_t>(first * dtype_bytes(type));
    return result;
  }

  int64_t shape[4];
  int64_t strides[4];
  int64_t row;
  int64_t first;
  int32_t type;
  std::vector<float> numbers;
  std::vector<std::byte> bytes;
};

struct EncodeCase {
  int32_t d;
  int32_t dv;
  int32_t codec;
  int32_t vote;
  int32_t sketch_bits;
  int32_t stride;
  int32_t dtype;
  bool is_odd = false;
  int32_t rounds = 1;
};

// What both backends leave beside records.
struct Sums {
  explicit Sums(const pkv_geometry& g)
      : occupancy(static_cast<size_t>(kSequences * g.kv_heads * (g.head_dim / 8) * 256), 1),
        values(static_cast<size_t>(kSequences * g.kv_heads * g.value_dim), 0.5),
        good(static_cast<size_t>(kSequences * g.kv_heads), 3),
        first_bad(static_cast<size_t>(2 * g.kv_heads), -9) {}
  bool operator==(const Sums& other) const {
    const bool are_values_equal =
        values.empty() || std::memcmp(values.data(), other.values.data(), 8 * values.size()) == 0;
    return are_values_equal && occupancy == other.occupancy && good == other.good &&
           first_bad == other.first_bad;
  }
  void put(pkv_encode_args& args) {
    const bool is_tier = args.codec.geometry->vote == PKV_VOTE_TIER;
    args.occupancy = is_tier ? occupancy.data() : nullptr;
    args.value_sums = args.values.ndim != 0 ? values.data() : nullptr;
    args.good_counts = good.data();
    args.first_bad = first_bad.data();
  }

  std::vector<int32_t> occupancy;
  std::vector<double> values;
  std::vector<int64_t> good;
  std::vector<int64_t> first_bad;
};

void check_encode(const EncodeCase& c, const gpu_exec::Options& machine, bool in_pages) {
  pkv_geometry geometry =
      test::with_sketch(geometry_of(c.d, c.dv, c.codec, c.vote, 2), c.sketch_bits, c.stride);
  geometry.value_norm = c.dv != 0 ? 1 : 0;
  geometry.rounds = c.rounds;
  Oracle oracle(geometry, kTokens, kSequences);
  Backend backend(machine);
  const GpuStore gpu(backend, geometry, kSequences, kTokens, in_pages);

  // A second set of parameters.
  const std::vector<int32_t> set_of = {1, 0};
  const size_t of_set = oracle.balance.size();
  for (size_t j = 0; j < of_set; ++j) {
    oracle.center.push_back(0.25F);
    oracle.balance.push_back(0.5F + static_cast<float>(j % 7));
  }
  for (size_t j = oracle.value_center.size(); j > 0; --j) oracle.value_center.push_back(-0.125F);

  View keys(c.dtype, 2, 2, c.d, c.is_odd, 31);
  keys.at(0, 0, 40, 3) = test::kNan;
  keys.at(0, 1, 2, 0) = test::kInf;
  for (int32_t j = 0; j < c.d; ++j) keys.at(1, 1, 7, j) = 0.0F;
  View values(c.dtype, 2, 2, c.dv > 0 ? c.dv : 8, c.is_odd, 32);
  values.at(1, 0, 33, 5) = test::kInf;
  values.at(1, 0, 60, 1) = test::kNan;

  const std::vector<int32_t> sequences = {2, 0};
  const std::vector<int64_t> starts = {59, 0};
  const std::vector<int64_t> counts = {kStride, 71};
  pkv_encode_args args = {};
  args.struct_size = sizeof args;
  args.batch = 2;
  args.codec = oracle.codec();
  args.codec.set_of = set_of.data();
  args.keys = keys.tensor();
  if (c.dv > 0) args.values = values.tensor();
  args.sequences = sequences.data();
  args.starts = starts.data();
  args.counts = counts.data();

  Sums expected(geometry);
  args.store = oracle.store;
  expected.put(args);
  oracle.run(oracle.table->encode, args);
  Sums found(geometry);
  args.store = gpu.store;
  found.put(args);
  backend.run(table()->encode, args);
  CHECK(expected.first_bad[0] == 99);
  CHECK(found == expected);

  for (int64_t i = 0; i < 2; ++i) {
    for (int64_t head = 0; head < 2; ++head) {
      const size_t entry = static_cast<size_t>(i);
      const int64_t row = 2 * sequences[entry] + head;
      const Planes of_reference(geometry, kTokens);
      const Planes ours(geometry, kTokens);
      oracle.expect(oracle.table->store_export(oracle.device, nullptr, &geometry, &oracle.store,
                                               row, starts[entry], counts[entry],
                                               &of_reference.records));
      backend.expect(table()->store_export(backend.device(), backend.stream(), &geometry,
                                           &gpu.store, row, starts[entry], counts[entry],
                                           &ours.records));
      CAPTURE(row);
      CHECK(ours == of_reference);
    }
  }
}

constexpr int32_t kGraded = PKV_VOTE_GRADED;
constexpr int32_t kTier = PKV_VOTE_TIER;

TEST_CASE("encode: the bits of cpu_ref, in one piece and in pages, with a codec set per entry") {
  for (const EncodeCase& c :
       {EncodeCase{128, 128, PKV_CODEC_SCALAR4, kGraded, 4, 16, PKV_DTYPE_BF16},
        EncodeCase{64, 64, PKV_CODEC_SCALAR5, kTier, 2, 1, PKV_DTYPE_F16},
        EncodeCase{72, 24, PKV_CODEC_POLAR4, kTier, 4, 3, PKV_DTYPE_F32}}) {
    for (const gpu_exec::Options& machine : kMachines) {
      for (const bool in_pages : {false, true}) {
        // A page holds whole strides.
        if (in_pages && kPageTokens % c.stride != 0) continue;
        CAPTURE(c.d);
        CAPTURE(machine.lanes);
        CAPTURE(machine.seed);
        CAPTURE(in_pages);
        check_encode(c, machine, in_pages);
      }
    }
  }
}

TEST_CASE("encode: every kernel, aligned to pairs of elements and not") {
  for (const int32_t codec : {PKV_CODEC_POLAR4, PKV_CODEC_SCALAR4, PKV_CODEC_SCALAR5}) {
    for (const int32_t d : {64, 128, 256}) {
      for (const int32_t dtype : {PKV_DTYPE_F32, PKV_DTYPE_F16, PKV_DTYPE_BF16}) {
        const int32_t bits = dtype == PKV_DTYPE_F16 ? 2 : 4;
        CAPTURE(codec);
        CAPTURE(d);
        CAPTURE(dtype);
        check_encode({d, d, codec, kGraded, bits, 1, dtype, false}, {}, true);
        check_encode({d, d, codec, kGraded, bits, 1, dtype, true}, {}, true);
      }
      check_encode({d, 0, codec, kTier, 0, 0, PKV_DTYPE_BF16}, {}, true);
      check_encode({d, d, codec, kTier, 4, 16, PKV_DTYPE_BF16, false, 2}, {}, true);
    }
  }
}

}  // namespace
}  // namespace pkv::gpu_host
