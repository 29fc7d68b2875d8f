// The inner loop of a scan: votes that reach the threshold join the survivors. Per target.
#if defined(PKV_CPU_COLLECT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PKV_CPU_COLLECT_INL_H_
#undef PKV_CPU_COLLECT_INL_H_
#else
#define PKV_CPU_COLLECT_INL_H_
#endif

#include "backends/cpu/select.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace pkv::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// votes[0, 64), of which the first `valid` count, at positions first ..
HWY_INLINE void collect_block(const float* HWY_RESTRICT votes, int64_t valid, int64_t first,
                              Survivors& survivors) {
  const hn::CappedTag<float, 16> df;
  const hn::RebindToSigned<decltype(df)> di;
  const size_t N = hn::Lanes(df);
  if (survivors.count + 64 > survivors.capacity) {
    if (survivors.wanted + 64 > survivors.capacity) survivors.is_full = true;
    if (survivors.is_full) return;
    keep_best(survivors);
  }
  const auto threshold = hn::Set(df, survivors.threshold);
  auto positions = hn::Iota(di, static_cast<int32_t>(first));
  const auto step = hn::Set(di, static_cast<int32_t>(N));
  float* values = survivors.values;
  int64_t count = survivors.count;
  for (size_t at = 0; at < static_cast<size_t>(valid); at += N) {
    const auto v = hn::LoadU(df, votes + at);
    auto mask = hn::Ge(v, threshold);
    if (at + N > static_cast<size_t>(valid)) {
      mask = hn::And(mask, hn::FirstN(df, static_cast<size_t>(valid) - at));
    }
    hn::StoreU(hn::Compress(v, mask), df, values + count);
    hn::StoreU(hn::Compress(positions, hn::RebindMask(di, mask)), di, survivors.positions + count);
    count += static_cast<int64_t>(hn::CountTrue(df, mask));
    positions = hn::Add(positions, step);
  }
  survivors.count = count;
}

}  // namespace pkv::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard per target
