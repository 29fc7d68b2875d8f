// The scan: votes of all keys of a block. docs/algorithm.md, section 4.2. Exact.
// Traffic per key, d = 128: 18 B read.
#pragma once

#include "backends/cuda/fused_rows.cuh"
#include "backends/cuda/fused_vote.cuh"

namespace pkv::cuda {

template <int kDim>
struct VoteScan {
  static constexpr int kUnits = kDim <= 128 ? 256 / kDim : 1;  // whose loads a warp issues at once
  static constexpr int kKeys = kUnits * kFusedWarps * kUnitKeys;
  VoteUnit<kDim> units[kUnits];

  PKV_DEVICE void load(const FusedArgs& a, const format::StoreRow& records, int64_t position) {
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      units[u].load_full(a.store.layout, records, position + u * kFusedWarps * kUnitKeys);
    }
  }
};

inline constexpr int kScanAhead = 4;  // rounds from votes to the prefetch of their keys

// By one warp.
template <int kDim>
PKV_DEVICE void prefetch_scan(const FusedArgs& a, const KeyRange& keys,
                              const format::StoreRow& records) {
  const int lane = LaneGroup<32>::rank();
  const bool is_sample = lane < kFusedWarps;
  const int64_t first = is_sample ? VoteSample<kDim>::position(keys.n, lane) : keys.begin;
  const int64_t left = is_sample ? keys.n - first : keys.length;
  const int64_t most = is_sample ? kUnitKeys : kScanAhead * VoteScan<kDim>::kKeys;
  if (lane > kFusedWarps || left <= 0) return;
  prefetch_keys(a.store.layout, records, first, left < most ? left : most);
}

// All keys of the block. All threads. The next units' loads are under way while votes are counted.
template <bool kHasWindow, int kDim>
PKV_DEVICE void scan_keys(const FusedArgs& a, const BlockRow& at, const VoteQuery<kDim>& q,
                          const KeyScale& scale, uint16_t* keys, uint32_t* histogram) {
  using Scan = VoteScan<kDim>;
  const format::StoreRow records = at.records;
  const int32_t length = at.length;
  const int64_t begin = at.begin;
  int32_t first = kUnitKeys * LaneGroup<32>::index();  // of the warp's next unit
  constexpr int32_t kSpan = (Scan::kUnits - 1) * kFusedWarps * kUnitKeys + kUnitKeys;
  Scan next;
  if (first + kSpan <= length) next.load(a, records, begin + first);
#pragma unroll 1
  for (; first + kSpan <= length; first += Scan::kKeys) {
    const Scan scan = next;
    if (first + Scan::kKeys + kSpan <= length) {
      next.load(a, records, begin + first + Scan::kKeys);
    }
    // What comes after that is on its way to L2.
    const int lane = LaneGroup<32>::rank();
    const int32_t ahead = first + kScanAhead * Scan::kKeys + lane * kFusedWarps * kUnitKeys;
    if (lane < Scan::kUnits && ahead + kUnitKeys <= length) {
      prefetch_keys(a.store.layout, records, begin + ahead, kUnitKeys);
    }
#pragma unroll
    for (int u = 0; u < Scan::kUnits; ++u) {
      keep_votes<kHasWindow>(scan.units[u], q, scale, keys + first + u * kFusedWarps * kUnitKeys,
                             histogram);
    }
  }
#pragma unroll 1
  for (; first < length; first += kFusedWarps * kUnitKeys) {
    VoteUnit<kDim> last;
    last.load(a.store.layout, records, begin + first, length - first);
    keep_votes<kHasWindow>(last, q, scale, keys + first, histogram);
  }
}

// The same without a window.
template <int kDim>
PKV_APART void scan_widely(const FusedArgs& a, const BlockRow& at, uint16_t* keys,
                           FusedShared<kDim>& shared) {
  const VoteQuery<kDim> query(shared);
  scan_keys<false>(a, at, query, {0, 0}, keys, shared.scan.histogram);
}

}  // namespace pkv::cuda
