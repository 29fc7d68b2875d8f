// What encode adds up of the values. docs/algorithm.md, section 3.7.
// Each coordinate is summed over the positions in ascending order, so pieces of an append give the
// bits of one; coordinates share no sum, so they are the lanes.
#include "backends/cpu/encode.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backends/cpu/encode_sums.cpp"
#include "hwy/foreach_target.h"
//
#include "backends/cpu/doubles-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace pkv::cpu::HWY_NAMESPACE {
namespace {

template <class Element>
void add_columns(const Layout& layout, const uint8_t* row, const Rows& values, int64_t begin,
                 int64_t end, int32_t columns, double* sums) {
  const int32_t step = static_cast<int32_t>(hn::Lanes(kDoubles));
  int32_t j = 0;
  // Four sums at a time hide the additions' latency.
  for (; j + 4 * step <= columns; j += 4 * step) {
    auto s0 = hn::LoadU(kDoubles, sums + j);
    auto s1 = hn::LoadU(kDoubles, sums + j + step);
    auto s2 = hn::LoadU(kDoubles, sums + j + 2 * step);
    auto s3 = hn::LoadU(kDoubles, sums + j + 3 * step);
    for (int64_t position = begin; position < end; ++position) {
      if (is_bad(layout, row, position)) continue;
      const uint8_t* v = values.at(position - begin);
      s0 = hn::Add(s0, load_doubles<Element>(v, j));
      s1 = hn::Add(s1, load_doubles<Element>(v, j + step));
      s2 = hn::Add(s2, load_doubles<Element>(v, j + 2 * step));
      s3 = hn::Add(s3, load_doubles<Element>(v, j + 3 * step));
    }
    hn::StoreU(s0, kDoubles, sums + j);
    hn::StoreU(s1, kDoubles, sums + j + step);
    hn::StoreU(s2, kDoubles, sums + j + 2 * step);
    hn::StoreU(s3, kDoubles, sums + j + 3 * step);
  }
  for (; j < columns; j += step) {
    auto sum = hn::LoadU(kDoubles, sums + j);
    for (int64_t position = begin; position < end; ++position) {
      if (is_bad(layout, row, position)) continue;
      sum = hn::Add(sum, load_doubles<Element>(values.at(position - begin), j));
    }
    hn::StoreU(sum, kDoubles, sums + j);
  }
}

void AddValues(const Layout& layout, const uint8_t* row, const Rows& values, int64_t begin,
               int64_t end, int32_t columns, double* sums) {
  constexpr int64_t kRun = 64;  // rows that stay in the first cache while all columns read them
  for (int64_t first = begin; first < end; first += kRun) {
    const int64_t last = first + kRun < end ? first + kRun : end;
    Rows run = values;
    run.first = values.at(first - begin);
    with_element(values.dtype, [&](auto element) HWY_ATTR {
      add_columns<decltype(element)>(layout, row, run, first, last, columns, sums);
    });
  }
}

}  // namespace
}  // namespace pkv::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pkv::cpu {

HWY_EXPORT(AddValues);

void add_values(const Isa& isa, const Layout& layout, const uint8_t* row, const Rows& values,
                int64_t begin, int64_t end, int32_t columns, double* sums) {
  PKV_CPU_DISPATCH(isa, AddValues)(layout, row, values, begin, end, columns, sums);
}

}  // namespace pkv::cpu
#endif  // HWY_ONCE
