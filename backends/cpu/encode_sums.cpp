// What encode adds up of the values. docs/algorithm.md, section 3.7.
// Each coordinate is summed over the positions in ascending order, so pieces of an append give the
// bits of one; coordinates share no sum, so they are the lanes.
#include "backends/cpu/encode.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backends/cpu/encode_sums.cpp"
#include "hwy/foreach_target.h"
//
#include <algorithm>

#include "backends/cpu/doubles-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace pkv::cpu::HWY_NAMESPACE {
namespace {

void add_values_simd(const RecordRow& records, const Rows& values, int64_t begin, int64_t end,
                     int32_t columns, double* sums) {
  constexpr int64_t kRun = 64;  // rows that stay in the first cache while all columns read them
  for (int64_t first = begin; first < end; first += kRun) {
    const int64_t last = std::min(first + kRun, end);
    const uint8_t* good[kRun];
    int count = 0;
    for (int64_t position = first; position < last; ++position) {
      if (!is_bad(records, position)) good[count++] = values.at(position - begin);
    }
    const RowPrefetch next(
        values.at(last - begin), values.row_bytes, columns * dtype_bytes(values.dtype),
        std::min(kRun, end - last),
        std::max<int64_t>(kRun * columns / static_cast<int64_t>(4 * hn::Lanes(kDoubles)), 1));
    with_element(values.dtype, [&](auto element) HWY_ATTR {
      add_rows<decltype(element)>(good, count, columns, sums, next);
    });
  }
}

}  // namespace
}  // namespace pkv::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pkv::cpu {

HWY_EXPORT(add_values_simd);

void add_values(const Isa& isa, const RecordRow& records, const Rows& values, int64_t begin,
                int64_t end, int32_t columns, double* sums) {
  PKV_CPU_DISPATCH(isa, add_values_simd)(records, values, begin, end, columns, sums);
}

}  // namespace pkv::cpu
#endif  // HWY_ONCE
