// Lanes that work together: the only shuffles, ballots, barriers and atomics of the GPU sources.
// A LaneGroup is a logical one: the aligned run of kSize threads of a block around the caller. It
// behaves alike on hardware of 32 and of 64 lanes, where it may be half of a hardware group, whose
// other half is somewhere else in the code.
//  - Every lane of the group calls the same operation at the same place in the source.
//  - sync() also orders the group's accesses to shared and global memory; shuffles and ballots do
//    not.
#pragma once

#include <bit>
#include <cstdint>

#include "backends/gpu/gpu_rt.h"

#if defined(PKV_GPU_HOST)
#include <atomic>
#define PKV_SITE ::pkv::gpu_exec::Site site = ::pkv::gpu_exec::Site::here()
#else
#define PKV_SITE ::PKV_GPU_NS::NoSite site = {}
#endif

namespace PKV_GPU_NS {

struct NoSite {};

#if defined(PKV_GPU_HOST)
using Site = gpu_exec::Site;
#else
using Site = NoSite;
#endif

// All threads of the block.
PKV_DEVICE void sync_block([[maybe_unused]] PKV_SITE) {
#if defined(PKV_GPU_HOST)
  gpu_exec::sync_block(site);
#else
  __syncthreads();
#endif
}

template <int kSize>
class LaneGroup {
  static_assert(kSize >= 1 && kSize <= 32 && (kSize & (kSize - 1)) == 0);

 public:
  static constexpr int kLanes = kSize;

  // Of the caller in its group.
  PKV_DEVICE static int rank() { return thread_index() % kSize; }
  // Of the group in its block, and how many there are.
  PKV_DEVICE static int index() { return thread_index() / kSize; }
  PKV_DEVICE static int count() { return block_size() / kSize; }

  PKV_DEVICE static void sync([[maybe_unused]] PKV_SITE) {
#if defined(PKV_GPU_HOST)
    gpu_exec::sync_group(kSize, site);
#elif defined(PKV_GPU_HIP)
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
    __builtin_amdgcn_wave_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
#else
    __syncwarp(mask());
#endif
  }

  // The value of the lane of rank `source`, 0 <= source < kSize. 4 or 8 bytes.
  template <class T>
  PKV_DEVICE static T shuffle(T value, int source, PKV_SITE) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8);
    if constexpr (sizeof(T) == 4) {
      return std::bit_cast<T>(
          static_cast<uint32_t>(move(std::bit_cast<uint32_t>(value), first() + source, site)));
    } else {
      return std::bit_cast<T>(
          static_cast<uint64_t>(move(std::bit_cast<uint64_t>(value), first() + source, site)));
    }
  }
  // The value of the lane whose rank differs in the bits of `bits`.
  template <class T>
  PKV_DEVICE static T shuffle_xor(T value, int bits, PKV_SITE) {
    return shuffle(value, rank() ^ bits, site);
  }

  // Bit r: what the lane of rank r said.
  PKV_DEVICE static uint32_t ballot(bool predicate, [[maybe_unused]] PKV_SITE) {
#if defined(PKV_GPU_HOST)
    const uint64_t bits = gpu_exec::ballot(kSize, predicate, site);
#elif defined(PKV_GPU_HIP)
    const uint64_t bits = __ballot(predicate);
#else
    const uint32_t bits = __ballot_sync(mask(), predicate);
#endif
    return static_cast<uint32_t>(bits >> first()) & kMembers;
  }
  PKV_DEVICE static bool any(bool predicate, PKV_SITE) { return ballot(predicate, site) != 0; }
  PKV_DEVICE static bool all(bool predicate, PKV_SITE) {
    return ballot(predicate, site) == kMembers;
  }
  // How many lanes of a smaller rank are in a ballot.
  PKV_DEVICE static int rank_in(uint32_t ballot_bits) {
    return count_bits(ballot_bits & ((1U << rank()) - 1U));
  }
  PKV_DEVICE static int count_bits(uint32_t bits) {
#if defined(PKV_GPU_HOST)
    return std::popcount(bits);
#else
    return __popc(bits);
#endif
  }

  // combine(a, b) over all lanes, for every lane: ranks that differ in bit kSize/2 first, then in
  // kSize/4, .. 1, which is the order of a fold. `combine` commutes.
  template <class T, class Combine>
  PKV_DEVICE static T reduce(T value, Combine combine, PKV_SITE) {
#pragma unroll
    for (int bits = kSize / 2; bits >= 1; bits /= 2) {
      value = combine(value, shuffle_xor(value, bits, site));
    }
    return value;
  }
  // Integers; floats too, where the order of a fold is wanted.
  template <class T>
  PKV_DEVICE static T sum(T value, PKV_SITE) {
    return reduce(
        value, [](T a, T b) { return a + b; }, site);
  }
  template <class T>
  PKV_DEVICE static T max(T value, PKV_SITE) {
    return reduce(
        value, [](T a, T b) { return a < b ? b : a; }, site);
  }
  template <class T>
  PKV_DEVICE static T min(T value, PKV_SITE) {
    return reduce(
        value, [](T a, T b) { return b < a ? b : a; }, site);
  }
  // The sum over the lanes of a smaller rank; integers.
  template <class T>
  PKV_DEVICE static T sum_before(T value, PKV_SITE) {
    T sum = value;
#pragma unroll
    for (int step = 1; step < kSize; step *= 2) {
      const int source = rank() >= step ? rank() - step : rank();
      const T other = shuffle(sum, source, site);
      if (rank() >= step) sum += other;
    }
    return sum - value;
  }

 private:
  static constexpr uint32_t kMembers = static_cast<uint32_t>((uint64_t{1} << kSize) - 1);

  // The caller's group begins at this lane of the hardware's group.
  PKV_DEVICE static int first() { return thread_index() % hardware_lanes() / kSize * kSize; }
  PKV_DEVICE static int hardware_lanes() {
#if defined(PKV_GPU_HOST)
    return gpu_exec::hardware_lanes();
#elif defined(PKV_GPU_HIP)
    return warpSize;
#else
    return 32;
#endif
  }
#if defined(PKV_GPU_CUDA)
  PKV_DEVICE static uint32_t mask() { return kMembers << first(); }
#endif

  // The value of lane `source` of the hardware's group, one of this group's.
  template <class Bits>
  PKV_DEVICE static Bits move(Bits bits, int source, [[maybe_unused]] Site site) {
#if defined(PKV_GPU_HOST)
    return static_cast<Bits>(gpu_exec::shuffle(kSize, bits, source, site));
#elif defined(PKV_GPU_HIP)
    if constexpr (sizeof(Bits) == 8) {
      return static_cast<Bits>(__shfl(static_cast<unsigned long long>(bits), source, warpSize));
    } else {
      return static_cast<Bits>(__shfl(static_cast<unsigned>(bits), source, warpSize));
    }
#else
    if constexpr (sizeof(Bits) == 8) {
      return static_cast<Bits>(
          __shfl_sync(mask(), static_cast<unsigned long long>(bits), source, 32));
    } else {
      return static_cast<Bits>(__shfl_sync(mask(), static_cast<unsigned>(bits), source, 32));
    }
#endif
  }
};

// Integer atomics, relaxed, on shared or global memory. Returns the value before.
template <class T>
PKV_DEVICE T atomic_add(T* target, T value) {
#if defined(PKV_GPU_HOST)
  return std::atomic_ref<T>(*target).fetch_add(value, std::memory_order_relaxed);
#else
  if constexpr (sizeof(T) == 8) {
    return static_cast<T>(atomicAdd(reinterpret_cast<unsigned long long*>(target),
                                    static_cast<unsigned long long>(value)));
  } else {
    return atomicAdd(target, value);
  }
#endif
}
// int32_t and uint32_t.
template <class T>
PKV_DEVICE T atomic_max(T* target, T value) {
  static_assert(sizeof(T) == 4);
#if defined(PKV_GPU_HOST)
  std::atomic_ref<T> cell(*target);
  T before = cell.load(std::memory_order_relaxed);
  while (before < value && !cell.compare_exchange_weak(before, value, std::memory_order_relaxed)) {
  }
  return before;
#else
  return atomicMax(target, value);
#endif
}
template <class T>
PKV_DEVICE T atomic_min(T* target, T value) {
  static_assert(sizeof(T) == 4);
#if defined(PKV_GPU_HOST)
  std::atomic_ref<T> cell(*target);
  T before = cell.load(std::memory_order_relaxed);
  while (value < before && !cell.compare_exchange_weak(before, value, std::memory_order_relaxed)) {
  }
  return before;
#else
  return atomicMin(target, value);
#endif
}
PKV_DEVICE int32_t atomic_exchange(int32_t* target, int32_t value) {
#if defined(PKV_GPU_HOST)
  return std::atomic_ref<int32_t>(*target).exchange(value, std::memory_order_relaxed);
#else
  return atomicExch(target, value);
#endif
}
PKV_DEVICE uint32_t atomic_or(uint32_t* target, uint32_t value) {
#if defined(PKV_GPU_HOST)
  return std::atomic_ref<uint32_t>(*target).fetch_or(value, std::memory_order_relaxed);
#else
  return atomicOr(target, value);
#endif
}

// Words by which blocks of a cooperative launch tell each other something, in global memory: the
// word carries all there is to know, since neither orders other accesses.
PKV_DEVICE void post_word(uint64_t* target, uint64_t word) {
#if defined(PKV_GPU_HOST)
  std::atomic_ref<uint64_t>(*target).store(word, std::memory_order_relaxed);
#elif defined(PKV_GPU_HIP)
  __hip_atomic_store(target, word, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
#else
  asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(target), "l"(word) : "memory");
#endif
}
PKV_DEVICE uint64_t read_word(const uint64_t* source) {
#if defined(PKV_GPU_HOST)
  return std::atomic_ref<uint64_t>(*const_cast<uint64_t*>(source)).load(std::memory_order_relaxed);
#elif defined(PKV_GPU_HIP)
  return __hip_atomic_load(source, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
#else
  uint64_t word;
  asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(word) : "l"(source) : "memory");
  return word;
#endif
}
// In every loop that waits for a word of another block.
PKV_DEVICE void spin_pause([[maybe_unused]] PKV_SITE) {
#if defined(PKV_GPU_HOST)
  gpu_exec::spin_pause(site);
#elif defined(PKV_GPU_HIP)
  __builtin_amdgcn_s_sleep(1);
#endif
}

}  // namespace PKV_GPU_NS
