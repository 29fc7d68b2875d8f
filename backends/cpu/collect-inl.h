// The inner loop of a scan: votes that reach the threshold join the survivors. Per target.
#if defined(PKV_CPU_COLLECT_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef PKV_CPU_COLLECT_INL_H
#undef PKV_CPU_COLLECT_INL_H
#else
#define PKV_CPU_COLLECT_INL_H
#endif

#include "backends/cpu/select.h"
#include "backends/cpu/simd-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace pkv::cpu::HWY_NAMESPACE {

// votes[0, 64), of which the first `valid` count, at positions first ..
HWY_INLINE void collect_block(const float* HWY_RESTRICT votes, int64_t valid, int64_t first,
                              Survivors& survivors) {
  if (survivors.count + 64 > survivors.capacity) {
    if (survivors.wanted + 64 > survivors.capacity) survivors.is_full = true;
    if (survivors.is_full) return;
    keep_best(survivors);
  }
  const DF df;
  const DI32 di;
  constexpr auto kStep = static_cast<int64_t>(kFloats);
  const VF threshold = hn::Set(df, survivors.threshold);
  VI32 positions = hn::Iota(di, static_cast<int32_t>(first));
  const VI32 step = hn::Set(di, static_cast<int32_t>(kFloats));
  int64_t count = survivors.count;
  for (int64_t at = 0; at < valid; at += kStep) {
    const VF v = hn::LoadU(df, votes + at);
    auto mask = hn::Ge(v, threshold);
    if (at + kStep > valid) {
      mask = hn::And(mask, hn::FirstN(df, static_cast<size_t>(valid - at)));
    }
    const Kept kept = keep_lanes(v, positions, mask);
    hn::StoreU(kept.values, df, survivors.values + count);
    hn::StoreU(kept.positions, di, survivors.positions + count);
    count += kept.count;
    positions = hn::Add(positions, step);
  }
  survivors.count = count;
}

}  // namespace pkv::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard per target
