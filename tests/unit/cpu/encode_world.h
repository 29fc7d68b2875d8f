// Encode on both backends of a Twin, and everything that it leaves, byte for byte.
#pragma once

#include <cstring>
#include <string>
#include <vector>

#include "tests/unit/cpu/twin.h"

namespace pkv::test {

// What the stage adds up, and what it says of the call.
struct Sums {
  std::vector<int32_t> occupancy;
  std::vector<double> values;
  std::vector<int64_t> good;
  std::vector<int64_t> first_bad;

  explicit Sums(const Oracle& oracle)
      : occupancy(oracle.occupancy.size(), 0),
        values(oracle.value_sums.size(), 0.0),
        good(oracle.good_counts.size(), 0) {}
};

inline bool operator==(const Sums& a, const Sums& b) {
  return a.occupancy == b.occupancy && a.good == b.good && a.first_bad == b.first_bad &&
         std::memcmp(a.values.data(), b.values.data(), a.values.size() * sizeof(double)) == 0;
}

// Arguments of one append but for the store.
inline pkv_encode_args encode_args(Oracle& oracle, const pkv_tensor& keys, const pkv_tensor& values,
                                   const std::vector<int32_t>& sequences,
                                   const std::vector<int64_t>& starts,
                                   const std::vector<int64_t>& counts, Sums& sums) {
  sums.first_bad.assign(starts.size() * static_cast<size_t>(oracle.geometry.kv_heads), -2);
  pkv_encode_args args = {};
  args.struct_size = sizeof args;
  args.batch = static_cast<int32_t>(sequences.size());
  args.codec = oracle.codec();
  args.keys = keys;
  args.values = values;
  args.sequences = sequences.data();
  args.starts = starts.data();
  args.counts = counts.data();
  args.occupancy = oracle.geometry.vote == PKV_VOTE_TIER ? sums.occupancy.data() : nullptr;
  args.value_sums = values.ndim == 0 ? nullptr : sums.values.data();
  args.good_counts = sums.good.data();
  args.first_bad = sums.first_bad.data();
  return args;
}

// Canonical planes of positions [begin, begin + count) of a row, one after another.
inline std::vector<uint8_t> exported(const pkv_backend& table, pkv_backend_device* device,
                                     const pkv_geometry& geometry, const pkv_store& store,
                                     int64_t row, int64_t begin, int64_t count) {
  const format::RecordSizes s = format::record_sizes(geometry);
  const int bytes[format::kPlanes] = {s.signs,         s.vote_factors, s.codes,
                                      s.factors,       s.value_signs,  s.value_codes,
                                      s.value_factors, s.value_norms};
  std::vector<uint8_t> memory;
  int64_t offsets[format::kPlanes];
  int64_t end = 0;
  for (int p = 0; p < format::kPlanes; ++p) {
    offsets[p] = end;
    end += bytes[p] * (format::plane_entries(geometry, p, begin + count) -
                       format::plane_entries(geometry, p, begin));
    end = (end + 1) / 2 * 2;
  }
  memory.assign(static_cast<size_t>(end) + 2, 0xEE);
  const auto halves = [&](int p) {
    return reinterpret_cast<uint16_t*>(memory.data() + offsets[p]);
  };
  pkv_records records = {};
  records.struct_size = sizeof records;
  records.row_tokens = count;
  records.signs = memory.data() + offsets[0];
  records.vote_factors = halves(1);
  records.codes = memory.data() + offsets[2];
  records.factors = halves(3);
  records.value_signs = memory.data() + offsets[4];
  records.value_codes = memory.data() + offsets[5];
  records.value_factors = halves(6);
  records.value_norms = halves(7);
  if (table.store_export(device, nullptr, &geometry, &store, row, begin, count, &records) !=
      PKV_OK) {
    throw std::runtime_error("export failed");
  }
  return memory;
}

inline std::vector<uint8_t> exported_by_ref(Twin& twin, int64_t row, int64_t begin, int64_t count) {
  return exported(*twin.ref.table, twin.ref.device, twin.ref.geometry, twin.ref.store, row, begin,
                  count);
}
inline std::vector<uint8_t> exported_by_cpu(Twin& twin, int64_t row, int64_t begin, int64_t count) {
  return exported(*twin.cpu, twin.device, twin.ref.geometry, twin.store, row, begin, count);
}

}  // namespace pkv::test
