// The kernel of stage fit. docs/algorithm.md, section 2.2.
// Which keys are usable is exact; the sums are in double, one key after another.
#include "backends/cpu/fit.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backends/cpu/fit_keys.cpp"
#include "hwy/foreach_target.h"
//
#include <algorithm>

#include "backends/cpu/columns-inl.h"
#include "backends/cpu/doubles-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace pkv::cpu::HWY_NAMESPACE {
namespace {

constexpr int kRunKeys = 64;  // keys that stay in the first cache while all columns read them

// Clears usable[i] where the squares of row first + i have no finite sum, i < count.
template <class Element>
void mark_unusable(const Rows& rows, int64_t first, int count, int32_t dim, bool* usable) {
  HWY_ALIGN float x[format::kMaxHeadDim * kLanes];
  for (int batch = 0; batch < count; batch += kLanes) {
    const uint8_t* row[kLanes];
    for (int i = 0; i < kLanes; ++i) row[i] = rows.at(first + std::min(batch + i, count - 1));
    const int rest = std::clamp(count - batch - kLanes, 0, kLanes);
    load_raw<Element>(row, dim, x,
                      RowPrefetch(rows.at(first + batch + kLanes), rows.row_bytes,
                                  dim * Element::kBytes, rest, dim / 8));
    const auto is_finite = hn::IsFinite(fold_squares(x, dim));
    HWY_ALIGN uint32_t lanes[kLanes];
    hn::Store(hn::VecFromMask(kBits, hn::RebindMask(kBits, is_finite)), kBits, lanes);
    for (int i = 0; i < std::min(kLanes, count - batch); ++i) {
      usable[batch + i] = usable[batch + i] && lanes[i] != 0;
    }
  }
}

// The usable keys of a run and their weights.
struct Chosen {
  int count;
  const uint8_t* key[kRunKeys];
  const uint8_t* value[kRunKeys];
  double weight[kRunKeys];
};

template <class Element>
void add_keys(const Chosen& chosen, const float* pivot, int32_t d, const FitSums& out) {
  for (int32_t j = 0; j < d; j += static_cast<int32_t>(hn::Lanes(kDoubles))) {
    const Doubles c = hn::PromoteTo(kDoubles, hn::LoadU(kHalfFloats, pivot + j));
    Doubles A = hn::LoadU(kDoubles, out.sums + j);
    Doubles B = hn::LoadU(kDoubles, out.squares + j);
    for (int i = 0; i < chosen.count; ++i) {
      const Doubles x = hn::Sub(load_doubles<Element>(chosen.key[i], j), c);
      const Doubles o = hn::Set(kDoubles, chosen.weight[i]);
      A = hn::Add(A, hn::Mul(o, x));
      B = hn::Add(B, hn::Mul(o, hn::Mul(x, x)));
    }
    hn::StoreU(A, kDoubles, out.sums + j);
    hn::StoreU(B, kDoubles, out.squares + j);
  }
}

void fit_keys_impl(const FitRun& run, FitSums& out) {
  out.count = out.weight = 0;
  std::fill_n(out.sums, run.d, 0.0);
  std::fill_n(out.squares, run.d, 0.0);
  if (out.values != nullptr) std::fill_n(out.values, run.dv, 0.0);
  for (int64_t first = 0; first < run.count; first += kRunKeys) {
    const int count = static_cast<int>(std::min<int64_t>(kRunKeys, run.count - first));
    bool usable[kRunKeys];
    std::fill_n(usable, kRunKeys, true);
    with_element(run.keys.dtype, [&](auto element) HWY_ATTR {
      mark_unusable<decltype(element)>(run.keys, first, count, run.d, usable);
    });
    if (run.dv != 0) {
      with_element(run.values.dtype, [&](auto element) HWY_ATTR {
        mark_unusable<decltype(element)>(run.values, first, count, run.dv, usable);
      });
    }
    Chosen chosen;
    chosen.count = 0;
    for (int i = 0; i < count; ++i) {
      if (!usable[i]) continue;
      const int32_t weight = run.weights == nullptr ? 1 : run.weights[first + i];
      chosen.key[chosen.count] = run.keys.at(first + i);
      chosen.value[chosen.count] = run.dv == 0 ? nullptr : run.values.at(first + i);
      chosen.weight[chosen.count++] = weight;
      out.weight += weight;
    }
    out.count += chosen.count;
    with_element(run.keys.dtype, [&](auto element) HWY_ATTR {
      add_keys<decltype(element)>(chosen, run.pivot, run.d, out);
    });
    if (out.values != nullptr) {
      with_element(run.values.dtype, [&](auto element) HWY_ATTR {
        add_rows<decltype(element)>(chosen.value, chosen.count, run.dv, out.values,
                                    RowPrefetch::none());
      });
    }
  }
}

}  // namespace
}  // namespace pkv::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pkv::cpu {

HWY_EXPORT(fit_keys_impl);

void fit_keys(const Isa& isa, const FitRun& run, FitSums& out) {
  PKV_CPU_DISPATCH(isa, fit_keys_impl)(run, out);
}

}  // namespace pkv::cpu
#endif  // HWY_ONCE
