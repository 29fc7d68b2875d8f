// The device's cache of fetched rows inside the fused step; what it holds is the same as by stages
// (backends/gpu/row_cache.cuh says how), docs/decisions/0013-row-cache.md.
//  - Each block copies the row's tags while the query is prepared, before it tells the team
//    anything, and looks its hits up in the copy: tags change when all have posted theirs.
//  - Behind the attention every set has one block, and there one warp, which gives lines to rows
//    that were not found and posts them.
//  - The block that fetched such a row writes it to its line.
#pragma once

#include "backends/cuda/fused_hits.cuh"
#include "backends/gpu/row_cache.cuh"

namespace pkv::cuda {

PKV_DEVICE RowCacheRow cache_row(const FusedArgs& a, const BlockRow& at) {
  return RowCacheRow(a.row_cache, at.sequence * a.codec.geometry.kv_heads + at.head);
}

// What hangs on the row's first of the batch alone, by one warp: shared.has_cache.
template <int kDim>
PKV_DEVICE void find_cache(const FusedArgs& a, FusedShared<kDim>& shared) {
  using Group = LaneGroup<32>;
  bool is_first = true;
  if (a.row_cache.data != nullptr) {
    for (int64_t other = Group::rank(); other < shared.at.entry; other += 32) {
      if (a.sequences[other] == shared.at.sequence) is_first = false;
    }
  }
  is_first = Group::all(is_first);
  if (Group::rank() != 0) return;
  shared.has_cache = is_first && a.row_cache.data != nullptr ? 1 : 0;
  if (a.row_cache.data != nullptr) shared.cache_step = cache_row(a, shared.at).next_step();
}

// The row's tags, by threads `thread` of `threads`.
template <int kDim>
PKV_DEVICE void load_tags(const FusedArgs& a, uint64_t* tags, int thread, int threads,
                          const FusedShared<kDim>& shared) {
  if (a.row_cache.data == nullptr) return;
  const RowCacheRow row = cache_row(a, shared.at);
#pragma unroll 1
  for (int32_t i = thread; i < a.row_cache.lines; i += threads) tags[i] = row.tags[i];
}

// The line that holds a position, or kNoLine.
PKV_DEVICE int32_t find_line(const RowCacheRow& row, const uint64_t* tags, int32_t position) {
  const int32_t first = row.set_of(position) * kRowCacheWays;
  int32_t line = kNoLine;
#pragma unroll
  for (int way = 0; way < kRowCacheWays; ++way) {
    if (tag_names(tags[first + way], position)) line = first + way;
  }
  return line;
}

// RowCacheSet of one warp: lane w has way w.
class WarpCacheSet {
 public:
  using Group = LaneGroup<32>;
  PKV_DEVICE WarpCacheSet(const uint64_t* tags, int32_t set, uint32_t step)
      : first_(set * kRowCacheWays), step_(step) {
    is_way_ = Group::rank() < kRowCacheWays;
    tag_ = is_way_ ? tags[first_ + Group::rank()] : 0;
  }
  PKV_DEVICE bool find(int32_t position) {
    const bool is_here = is_way_ && tag_names(tag_, position);
    if (is_here) tag_ = row_cache_tag(step_, position);
    return Group::any(is_here);
  }
  // kNoLine: this step uses all.
  PKV_DEVICE int32_t claim(int32_t position) {
    const bool is_free = is_way_ && static_cast<uint32_t>(tag_ >> 32) != step_;
    const uint64_t oldest = Group::min(is_free ? tag_ : ~uint64_t{0});
    const uint32_t ways = Group::ballot(is_free && tag_ == oldest);
    if (ways == 0) return kNoLine;
    const int way = trailing_zeros(ways);
    if (Group::rank() == way) tag_ = row_cache_tag(step_, position);
    return first_ + way;
  }
  PKV_DEVICE void store(uint64_t* tags) const {
    if (is_way_) tags[first_ + Group::rank()] = tag_;
  }

 private:
  int32_t first_;
  uint32_t step_;
  bool is_way_;
  uint64_t tag_;
};

// The block's sets after this step, and lines for rows that they lack, to the team. All threads;
// the row's hits are settled.
template <int kDim>
PKV_APART void claim_lines(const FusedArgs& a, const uint64_t* tags, const HitRoom hits) {
  using Group = LaneGroup<32>;
  FusedShared<kDim>& shared = fused_shared<kDim>();
  const Team& team = shared.team;
  const RowCacheRow row = cache_row(a, shared.at);
  const HitRange range = shared.hits;
  if (team.rank == 0 && thread_index() == 0) {
    row.counts[0] += 1;
    row.counts[1] += static_cast<uint64_t>(range.wanted);
  }
#pragma unroll 1
  for (int32_t s = team.rank + team.size * Group::index(); s < row.sets;
       s += team.size * kFusedWarps) {
    WarpCacheSet set(tags, s, shared.cache_step);
    int32_t found = 0;
    int32_t all = 0;
    // Hits of the set come by position, since entries are listed so. First all that are there.
#pragma unroll 1
    for (int pass = 0; pass < 2; ++pass) {
#pragma unroll 1
      for (int32_t first = 0; first < range.all; first += 32) {
        const int32_t own = first + Group::rank();
        const int32_t own_position =
            own < range.all ? static_cast<int32_t>(hits.positions()[own]) : 0;
        uint32_t members = Group::ballot(own < range.all && row.set_of(own_position) == s);
#pragma unroll 1
        for (; members != 0; members &= members - 1) {
          const int lane = trailing_zeros(members);
          const int32_t position = Group::shuffle(own_position, lane);
          const bool is_hit =
              range.all == range.wanted || hits_before(hits, range, first + lane) < range.wanted;
          if (!is_hit) continue;
          const bool is_there = set.find(position);
          if (pass == 0) {
            ++all;
            found += is_there ? 1 : 0;
          } else if (!is_there) {
            const int32_t line = set.claim(position);
            if (Group::rank() == 0) {
              post(team.claims + first + lane, team.tag(), static_cast<uint64_t>(line + 1));
            }
          }
        }
      }
      if (found == all) break;
    }
    if (all == 0) continue;
    set.store(row.tags);
    if (found > 0 && Group::rank() == 0) {
      atomic_add(row.counts + 2, static_cast<uint64_t>(found));
    }
  }
}

// Rows that the block fetched, to the lines that they were given: from their slots (NULL: they are
// no longer there), or from where they come from. All threads, after claim_lines.
template <int kDim>
PKV_APART void keep_rows(const FusedArgs& a, const HitRoom hits, const unsigned char* slots) {
  using Group = LaneGroup<32>;
  FusedShared<kDim>& shared = fused_shared<kDim>();
  const Team& team = shared.team;
  const BlockRow& at = shared.at;
  const RowCacheRow row = cache_row(a, at);
  const HitRange range = shared.hits;
#pragma unroll 1
  for (int32_t i = Group::index(); i < range.own; i += kFusedWarps) {
    if (hits.place()[i] < 0 || hits.line()[i] != kNoLine) continue;
    const int32_t number = range.base + i;
    const auto line = static_cast<int32_t>(await(team.claims + number, team.tag())) - 1;
    if (line == kNoLine) continue;
    if (slots != nullptr) {
      const unsigned char* slot = slots + i * a.arena.row_bytes;
#pragma unroll 1
      for (int32_t j = 16 * Group::rank(); j < a.arena.row_bytes; j += 16 * 32) {
        std::byte* to = j < a.key_bytes ? row.key(line) + j : row.value(line) + (j - a.key_bytes);
        store_words(to, load_words<4>(slot + j));
      }
      continue;
    }
    const auto position = static_cast<int64_t>(hits.positions()[number]);
    const std::byte* keys = a.row_keys.row(at.sequence, at.sequence, at.head).at(position);
    const std::byte* values = a.row_values.row(at.sequence, at.sequence, at.head).at(position);
#pragma unroll 1
    for (int32_t j = 2 * Group::rank(); j < a.arena.row_bytes; j += 2 * 32) {
      const bool is_key = j < a.key_bytes;
      const std::byte* from = is_key ? keys + j : values + (j - a.key_bytes);
      std::byte* to = is_key ? row.key(line) + j : row.value(line) + (j - a.key_bytes);
      *reinterpret_cast<uint16_t*>(to) = *reinterpret_cast<const uint16_t*>(from);
    }
  }
}

}  // namespace pkv::cuda
