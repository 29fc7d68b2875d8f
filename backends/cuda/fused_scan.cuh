// The scan: votes of all keys of a block. docs/algorithm.md, section 4.2. Exact.
// Traffic per key, d = 128: 18 B read.
#pragma once

#include "backends/cuda/fused_rows.cuh"
#include "backends/cuda/fused_vote.cuh"

namespace pkv::cuda {

template <int kDim>
struct VoteScan {
  static constexpr int kUnits = kDim <= 128 ? 256 / kDim : 1;  // whose loads a warp issues at once
  static constexpr int kStride = kFusedWarps * kUnitKeys;  // keys from a unit of a warp to its next
  static constexpr int kKeys = kUnits * kStride;
  static constexpr int kSpan = kKeys - kStride + kUnitKeys;  // from the first key of a round on
  VoteUnit<kDim> units[kUnits];

  // `keys`: where the first of them is kept.
  template <bool kHasWindow>
  PKV_DEVICE void keep(const VoteQuery<kDim>& q, const KeyScale& scale, uint16_t* keys,
                       uint32_t* histogram) const {
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      keep_votes<kHasWindow>(units[u], q, scale, keys + u * kStride, histogram);
    }
  }
};

// The full rounds of a warp's units, one after the other; the last one comes again and again. Where
// units lie is worked out anew only if there are pages.
template <int kDim>
class ScanRounds {
 public:
  using Scan = VoteScan<kDim>;
  // `factors`: of Layout; `first`: the warp's first key; `count`: of rounds, at least one.
  PKV_DEVICE ScanRounds(int64_t factors, const BlockRow& at, int32_t first, int32_t count)
      : factors_(factors), records_(at.records), next_(at.begin + first), left_(count) {
#pragma unroll
    for (int u = 0; u < Scan::kUnits; ++u) places_[u] = place(u);
  }
  PKV_DEVICE void load(Scan& scan) {
#pragma unroll
    for (int u = 0; u < Scan::kUnits; ++u) scan.units[u].load_full(places_[u]);
    const int32_t step = --left_ > 0 ? Scan::kKeys : 0;
    next_ += step;
    if (records_.pages == nullptr) {
#pragma unroll
      for (int u = 0; u < Scan::kUnits; ++u) places_[u].advance(step);
    } else {
#pragma unroll
      for (int u = 0; u < Scan::kUnits; ++u) places_[u] = place(u);
    }
  }

 private:
  PKV_DEVICE UnitPlace<kDim> place(int u) const {
    return VoteUnit<kDim>::place(factors_, records_, next_ + u * Scan::kStride);
  }

  int64_t factors_;
  const format::StoreRow records_;
  int64_t next_;  // position of its first key
  int32_t left_;
  UnitPlace<kDim> places_[Scan::kUnits];
};

inline constexpr int kScanPrefetch = 4;  // rounds that are on their way to L2 early

// What the scan reads first; by one thread.
template <int kDim>
PKV_DEVICE void prefetch_scan(const FusedArgs& a, const KeyRange& keys,
                              const format::StoreRow& records) {
  const int32_t most = kScanPrefetch * VoteScan<kDim>::kKeys;
  prefetch_keys(a.store.layout, records, keys.begin, keys.length < most ? keys.length : most);
}

// All keys of the block: into `keys`, those of the window into the histogram. All threads. The next
// units' loads are under way while votes are counted. `factors`: of Layout.
template <bool kHasWindow, int kDim>
PKV_APART void scan_keys(int64_t factors, uint16_t* keys, KeyScale scale) {
  using Scan = VoteScan<kDim>;
  FusedShared<kDim>& shared = fused_shared<kDim>();
  const VoteQuery<kDim> query(shared);
  const BlockRow& at = shared.at;
  const int32_t length = at.length;
  int32_t first = kUnitKeys * LaneGroup<32>::index();  // of the warp's next unit
  uint32_t* histogram = shared.scan.histogram;
  int32_t left = (length - first - Scan::kSpan + Scan::kKeys) / Scan::kKeys;  // full rounds
  if (left > 0) {
    ScanRounds<kDim> rounds(factors, at, first, left);
    Scan even;
    Scan odd;
    rounds.load(even);
#pragma unroll 1
    for (; left > 0; left -= 2) {
      rounds.load(odd);
      even.template keep<kHasWindow>(query, scale, keys + first, histogram);
      first += Scan::kKeys;
      if (left == 1) break;
      rounds.load(even);
      odd.template keep<kHasWindow>(query, scale, keys + first, histogram);
      first += Scan::kKeys;
    }
  }
#pragma unroll 1
  for (; first < length; first += Scan::kStride) {
    VoteUnit<kDim> last;
    last.load(VoteUnit<kDim>::place(factors, at.records, at.begin + first), length - first);
    keep_votes<kHasWindow>(last, query, scale, keys + first, histogram);
  }
}

}  // namespace pkv::cuda
