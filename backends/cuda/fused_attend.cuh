// Exact attention of a block's share: fetched rows, from slots in shared memory where copy engines
// put them, and dense tokens, from slots too if these are free from the beginning, else from where
// they lie. docs/algorithm.md, section 8. Bounded; every sum in one order.
// A warp takes a token: a lane has kDim / 32 neighbouring elements of K and V, for four heads.
// Rows that lie in the host's memory go through copy engines alone: loads of them would hold back
// every later load of the multiprocessor.
#pragma once

#include <cuda_pipeline.h>

#include "backends/cuda/fused_cache.cuh"
#include "backends/cuda/fused_tail.cuh"

namespace pkv::cuda {

PKV_DEVICE void init_barrier(uint64_t* barrier) {
  asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(shared_address(barrier)) : "memory");
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
PKV_DEVICE void expect_bytes(uint64_t* barrier, uint32_t bytes) {
  asm volatile(
      "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)),
      "r"(bytes)
      : "memory");
}
PKV_DEVICE void arrive_barrier(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}
PKV_DEVICE void wait_barrier(uint64_t* barrier, uint32_t parity) {
  uint32_t done = 0;
  while (done == 0) {
    asm volatile(
        "{\n.reg .pred p;\n"
        "mbarrier.try_wait.parity.shared.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n}"
        : "=r"(done)
        : "r"(shared_address(barrier)), "r"(parity)
        : "memory");
  }
}
PKV_DEVICE void copy_bulk(void* to, const void* from, uint32_t bytes, uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(shared_address(to)),
      "l"(from), "r"(bytes), "r"(shared_address(barrier))
      : "memory");
}
// Before copy engines write where threads have read or written.
PKV_DEVICE void fence_copies() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// `bytes` at `from` to shared memory, announced to the barrier.
PKV_DEVICE void request_bytes(const std::byte* from, unsigned char* to, int32_t bytes,
                              uint64_t* barrier) {
  if (is_aligned(from, 16)) {
    expect_bytes(barrier, static_cast<uint32_t>(bytes));
    copy_bulk(to, from, static_cast<uint32_t>(bytes), barrier);
    return;
  }
#pragma unroll 1
  for (int32_t j = 0; j < bytes; j += 2) {
    *reinterpret_cast<uint16_t*>(to + j) = *reinterpret_cast<const uint16_t*>(from + j);
  }
}

// K and V of a token into a slot; in one piece where they lie side by side. By one thread.
PKV_DEVICE void request_token(const FusedArgs& a, const std::byte* keys, const std::byte* values,
                              unsigned char* slot, uint64_t* barrier) {
  fence_copies();
  int32_t at_once = a.key_bytes;
  if (values == keys + a.key_bytes) at_once += a.value_bytes;
  const std::byte* from = keys;
#pragma unroll 1
  for (int32_t done = 0; done < a.arena.row_bytes; done += at_once) {
    if (done > 0) {
      from = values;
      at_once = a.value_bytes;
    }
    request_bytes(from, slot + done, at_once, barrier);
  }
}

// The first token that a lane of warp `warp` of `warps` copies: a warp issues one bulk copy after
// the other, so tokens are dealt to warps first.
PKV_DEVICE int32_t copy_index(int warp, int warps) { return warp + warps * LaneGroup<32>::rank(); }

// Fetched rows `begin` .. `end` of the block's hits into slots. Every thread with a row announces
// its bytes; one thread arrives when all have. All threads.
template <int kDim>
PKV_DEVICE void request_rows(const FusedArgs& a, const BlockRow& at, const Entries& e,
                             const HitRoom& hits, int32_t begin, int32_t end, unsigned char* slots,
                             const uint64_t* tags, FusedShared<kDim>& shared) {
  using Group = LaneGroup<32>;
  const int32_t mine = begin + copy_index(Group::index(), kFusedWarps);
  if (mine < end) {
    const VectorRow keys = a.row_keys.row(at.sequence, at.sequence, at.head);
    const VectorRow values = a.row_values.row(at.sequence, at.sequence, at.head);
    const RowCacheRow cache = cache_row(a, at);
    const bool has_cache = shared.has_cache != 0;
#pragma unroll 1
    for (int32_t i = mine; i < end; i += kFusedThreads) {
      const int64_t position = at.begin + (e.list[hits.entry()[i]] & kPlaceMask);
      const int32_t line =
          has_cache ? find_line(cache, tags, static_cast<int32_t>(position)) : kNoLine;
      hits.line()[i] = line;
      const bool is_there = line != kNoLine;
      request_token(a, is_there ? cache.key(line) : keys.at(position),
                    is_there ? cache.value(line) : values.at(position),
                    slots + (i - begin) * a.arena.row_bytes, &shared.row_barrier);
    }
  }
  sync_block();
  if (thread_index() == 0) arrive_barrier(&shared.row_barrier);
}

// Where K and V of a token lie.
struct TokenPlace {
  const std::byte* keys;
  const std::byte* values;
};
// Of the block's dense tokens the i-th.
template <int kDim>
PKV_DEVICE TokenPlace dense_token(const FusedArgs& a, int32_t i, const FusedShared<kDim>& shared) {
  const int64_t t = shared.at.dense.begin + i;
  int32_t p = 0;
#pragma unroll 1
  while (p + 1 < a.part_count && t >= shared.dense[p + 1].before) ++p;
  const DenseRun& run = shared.dense[p];
  const int64_t position = t - run.before + run.start;
  return {run.keys.at(position), run.values.at(position)};
}

// The block's dense tokens into slots, by warps `warp` of `warps`, one thread of which arrives when
// all have announced theirs.
template <int kDim>
PKV_DEVICE void request_dense(const FusedArgs& a, unsigned char* slots, int warp, int warps,
                              FusedShared<kDim>& shared) {
#pragma unroll 1
  for (int32_t i = copy_index(warp, warps); i < shared.at.dense_slots; i += 32 * warps) {
    const TokenPlace token = dense_token(a, i, shared);
    request_token(a, token.keys, token.values, slots + i * a.arena.row_bytes,
                  &shared.dense_barrier);
  }
}
// The block's dense tokens into L2, where they do not wait in slots. All threads; a run of lanes
// takes a token.
template <int kDim>
PKV_APART void prefetch_dense(const FusedArgs& a, const FusedShared<kDim>& shared) {
  using Lanes = LaneGroup<8>;
  const auto count = static_cast<int32_t>(shared.at.dense.end - shared.at.dense.begin);
#pragma unroll 1
  for (int32_t i = Lanes::index(); i < count; i += Lanes::count()) {
    const TokenPlace token = dense_token(a, i, shared);
#pragma unroll 1
    for (int32_t j = kSector * Lanes::rank(); j < a.arena.row_bytes; j += kSector * 8) {
      prefetch_sector(j < a.key_bytes ? token.keys + j : token.values + (j - a.key_bytes));
    }
  }
}

// A further batch of rows, into slots that are no longer read once all threads have come here.
template <int kDim>
PKV_APART void request_batch(const FusedArgs& a, const Entries e, const HitRoom hits, int32_t begin,
                             int32_t end, unsigned char* slots, const uint64_t* tags,
                             FusedShared<kDim>& shared) {
  sync_block();
  request_rows(a, shared.at, e, hits, begin, end, slots, tags, shared);
}

// The sums of the zone's values to shared memory, by threads `thread` of `threads`; they are there
// once these have waited (await_value_sums) and a block's barrier is passed.
template <int kDim>
PKV_DEVICE void request_value_sums(const FusedArgs& a, int thread, int threads,
                                   FusedShared<kDim>& shared) {
  const int32_t dv = a.codec.geometry.value_dim;
  const int64_t row = shared.at.sequence * a.codec.geometry.kv_heads + shared.at.head;
#pragma unroll 1
  for (int32_t j = thread; j < dv; j += threads) {
    __pipeline_memcpy_async(&shared.value_sums[j], a.value_sums + row * dv + j, sizeof(double));
  }
  if (thread == 0) {
    __pipeline_memcpy_async(&shared.good_count, a.good_counts + row, sizeof(int64_t));
  }
  __pipeline_commit();
}
PKV_DEVICE void await_value_sums() { __pipeline_wait_prior(0); }

// kCount neighbouring elements as they lie in a slot: f32 (kIsWide) or 16 bits.
template <int kCount, bool kIsWide>
struct RawRun {
  static constexpr int kWords = kIsWide ? kCount : kCount / 2;
  uint32_t word[kWords];

  PKV_DEVICE void load(const std::byte* from) {
    constexpr int kAtOnce = kWords < 4 ? kWords : 4;
    if (!is_aligned(from, 4 * kAtOnce)) {
      load_elements(from);
      return;
    }
#pragma unroll
    for (int i = 0; i < kWords; i += kAtOnce) {
      const auto words = load_words<kAtOnce>(from + 4 * i);
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) word[i + j] = words.word[j];
    }
  }
  PKV_DEVICE void load_elements(const std::byte* from) {
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      if constexpr (kIsWide) {
        word[i] = load_words<1>(from + 4 * i).word[0];
      } else {
        const auto* halves = reinterpret_cast<const uint16_t*>(from) + 2 * i;
        word[i] = halves[0] | uint32_t{halves[1]} << 16;
      }
    }
  }
  PKV_DEVICE void clear() {
#pragma unroll
    for (int i = 0; i < kWords; ++i) word[i] = 0;
  }
  PKV_DEVICE void unpack(pkv_dtype dtype, float (&x)[kCount]) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if constexpr (kIsWide) {
        x[i] = std::bit_cast<float>(word[i]);
      } else if (dtype == PKV_DTYPE_BF16) {
        x[i] = std::bit_cast<float>(i % 2 == 0 ? word[i / 2] << 16 : word[i / 2] & 0xffff0000U);
      } else {
        x[i] = f16_value(static_cast<uint16_t>(word[i / 2] >> (16 * (i % 2))));
      }
    }
  }
};

// Sums over the lanes of four values of each, for all lanes.
PKV_DEVICE void sum_heads(float (&x)[kHeadsAtOnce]) {
  using Group = LaneGroup<32>;
  const bool upper = (Group::rank() & 16) != 0;
  float a = upper ? x[2] : x[0];
  float b = upper ? x[3] : x[1];
  a += Group::shuffle_xor(upper ? x[0] : x[2], 16);
  b += Group::shuffle_xor(upper ? x[1] : x[3], 16);
  const bool odd = (Group::rank() & 8) != 0;
  float c = odd ? b : a;
  c += Group::shuffle_xor(odd ? a : b, 8);
#pragma unroll
  for (int step = 4; step >= 1; step /= 2) c += Group::shuffle_xor(c, step);
#pragma unroll
  for (int h = 0; h < kHeadsAtOnce; ++h) x[h] = Group::shuffle(c, 8 * h);
}

template <int kDim>
struct WarpShape {
  static constexpr int kHeads = kHeadsAtOnce;
  static constexpr int kElements = kDim / 32;
  static constexpr int kChunks = 1;
};

template <int kDim, bool kIsWide>
struct WarpAttention {
  static constexpr int kElements = kDim / 32;
  Softmax<WarpShape<kDim>> state;
  float q[kHeadsAtOnce][kElements];

  PKV_DEVICE WarpAttention(const FusedArgs& a, const FusedShared<kDim>& shared, int32_t first) {
    const int lane = LaneGroup<32>::rank();
    state.clear();
#pragma unroll
    for (int h = 0; h < kHeadsAtOnce; ++h) {
      const int32_t g = first + h < a.group ? first + h : 0;
#pragma unroll
      for (int i = 0; i < kElements; ++i) q[h][i] = shared.raw[g][kElements * lane + i];
    }
  }

  // The warp's of `count` tokens, every kFusedWarps-th: in slots, or (NULL) dense ones where they
  // lie. `places`: NULL, or negative for those to leave out.
  PKV_DEVICE void attend(const FusedArgs& a, const unsigned char* slots, int32_t count,
                         const int32_t* places, const FusedShared<kDim>& shared) {
    constexpr int kAhead = 2;
    constexpr int kSize = kIsWide ? 4 : 2;
    const int offset = LaneGroup<32>::rank() * kElements * kSize;
    const bool has_values = offset < a.value_bytes;  // the lane's elements of V exist
#pragma unroll 1
    for (int32_t base = LaneGroup<32>::index(); base < count; base += kFusedWarps * kAhead) {
      RawRun<kElements, kIsWide> keys[kAhead];
      RawRun<kElements, kIsWide> values[kAhead];
      bool is_there[kAhead];
#pragma unroll
      for (int u = 0; u < kAhead; ++u) {
        const int32_t t = base + u * kFusedWarps;
        is_there[u] = t < count && (places == nullptr || places[t] >= 0);
        keys[u].clear();
        values[u].clear();
        if (!is_there[u]) continue;
        TokenPlace token{};
        if (slots != nullptr) {
          token.keys = reinterpret_cast<const std::byte*>(slots + t * a.arena.row_bytes);
          token.values = token.keys + a.key_bytes;
        } else {
          token = dense_token(a, t, shared);
        }
        keys[u].load(token.keys + offset);
        if (has_values) values[u].load(token.values + offset);
      }
      float logits[kAhead][kHeadsAtOnce];
#pragma unroll
      for (int u = 0; u < kAhead; ++u) {
        float x[kElements];
        keys[u].unpack(a.dtype, x);
#pragma unroll
        for (int h = 0; h < kHeadsAtOnce; ++h) {
          logits[u][h] = 0.0F;
#pragma unroll
          for (int i = 0; i < kElements; ++i) logits[u][h] = fmadd(q[h][i], x[i], logits[u][h]);
        }
        sum_heads(logits[u]);
#pragma unroll
        for (int h = 0; h < kHeadsAtOnce; ++h) {
          logits[u][h] = is_there[u] ? a.logit(logits[u][h]) : minus_infinity();
        }
      }
#pragma unroll
      for (int h = 0; h < kHeadsAtOnce; ++h) {
        float most = logits[0][h];
#pragma unroll
        for (int u = 1; u < kAhead; ++u) most = larger(most, logits[u][h]);
        state.raise(h, most);
      }
#pragma unroll
      for (int u = 0; u < kAhead; ++u) {
        float x[kElements];
        values[u].unpack(a.dtype, x);
#pragma unroll
        for (int h = 0; h < kHeadsAtOnce; ++h) {
          const float weight = state.weigh(h, logits[u][h]);
#pragma unroll
          for (int i = 0; i < kElements; ++i) {
            state.out[h][i] = fmadd(weight, x[i], state.out[h][i]);
          }
        }
      }
    }
  }
};

}  // namespace pkv::cuda
