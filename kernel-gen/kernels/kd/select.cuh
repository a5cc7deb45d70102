// The K best of the entries of a CTA.
//
// An entry is one integer, (logit in an order-preserving form, complement of the token), so entries differ and compare as
// the result is ordered. Each warp takes the (K / WARPS)-th best of its lanes' leads, and the least of these is a floor that
// at least K entries reach. What reaches it is pooled, and each pooled entry finds its rank by counting. No result depends
// on the order in which threads arrive.
#pragma once

#include "kd/base.cuh"
#include "ptx/memory.cuh"

namespace kd {

// Larger for larger values; 0 for what is no token: NaN and -inf.
__device__ __forceinline__ uint32_t ordered(float logit) {
  if (!(logit > -INFINITY)) return 0;
  const uint32_t bits = __float_as_uint(logit + 0.0f);  // -0 becomes +0
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

__device__ __forceinline__ float logit_of(uint32_t bits) {
  return __uint_as_float(bits & 0x80000000u ? bits ^ 0x80000000u : ~bits);
}

__device__ __forceinline__ uint64_t entry_of(uint32_t high, uint32_t token) {
  return high == 0 ? 0 : uint64_t(high) << 32 | uint32_t(~token);
}

namespace pick {

// Pools this thread's entries whose bit is set in `mine`; those beyond POOL are counted only. Called by whole warps.
template <class U, class S, int COUNT, class Entry>
__device__ __forceinline__ void pool(Entry entry, uint32_t mine) {
  const int lane = threadIdx.x % 32;
  int before = 0, all = 0;  // in the lanes before this one, and in the warp
#pragma unroll
  for (int bit = 0; bit < 6; ++bit) {
    const uint32_t lanes = __ballot_sync(0xffffffffu, __popc(mine) >> bit & 1);
    before += __popc(lanes & ((1u << lane) - 1)) << bit;
    all += __popc(lanes) << bit;
  }
  if (all == 0) return;
  int base = 0;
  if (lane == 0) base = atomicAdd(S::count(), all);
  int slot = __shfl_sync(0xffffffffu, base, 0) + before;
#pragma unroll
  for (int i = 0; i < COUNT; ++i) {
    if (!(mine >> i & 1)) continue;
    if (slot < U::POOL) S::pool()[slot] = entry(i);
    ++slot;
  }
}

// The K-th best lead exactly: at most K threads' entries reach it. For rows whose best lie close together.
template <class U, class S>
__device__ __forceinline__ uint64_t exact_floor(uint64_t lead) {
  S::lead()[threadIdx.x] = lead;
  __syncthreads();
  if (threadIdx.x == 0) {
    S::count()[0] = 0;
    S::pool()[0] = 1;  // stays so if fewer than K threads have an entry
  }
  int rank = 0;
#pragma unroll 4
  for (int i = 0; i < U::THREADS; i += 2) {
    const ulonglong2 two = *reinterpret_cast<const ulonglong2*>(S::lead() + i);
    rank += int(two.x > lead) + int(two.y > lead);
  }
  __syncthreads();
  // Entries differ, so only threads without one can share a rank.
  if (rank == U::K - 1 && lead != 0) S::pool()[0] = lead;
  __syncthreads();
  const uint64_t floor = S::pool()[0];
  __syncthreads();
  return floor;
}

// Pools what can be among the K best of `entry(0 .. COUNT)`: the entries of at most K threads. Returns how many.
template <class U, class S, int COUNT, class Entry>
__device__ __forceinline__ int narrow(Entry entry) {
  uint64_t lead = 0;
#pragma unroll
  for (int i = 0; i < COUNT; ++i) lead = entry(i) > lead ? entry(i) : lead;
  const uint64_t floor = exact_floor<U, S>(lead);
  uint32_t mine = 0;
#pragma unroll
  for (int i = 0; i < COUNT; ++i) mine |= uint32_t(entry(i) >= floor) << i;
  pool<U, S, COUNT>(entry, mine);
  __syncthreads();
  return S::count()[0];
}

}  // namespace pick

// What at least K entries reach, by the warps' leads; 1 if there may be fewer. Also empties the pool.
template <class U, class S, int COUNT, class High>
__device__ __forceinline__ uint32_t lead_floor(High high) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  uint32_t lead = 0, best = 0;
#pragma unroll
  for (int i = 0; i < COUNT; ++i) lead = ::max(lead, high(i));
#pragma unroll 1
  for (int i = 0; i < U::K / U::WARPS; ++i) {
    best = __reduce_max_sync(0xffffffffu, lead);
    if (lane == __ffs(__ballot_sync(0xffffffffu, lead == best)) - 1) lead = 0;
  }
  if (lane == 0) S::floor()[warp] = best;
  if (threadIdx.x == 0) S::count()[0] = 0;
  __syncthreads();
  uint32_t floor = S::floor()[0];
#pragma unroll
  for (int i = 1; i < U::WARPS; ++i) floor = ::min(floor, S::floor()[i]);
  return ::max(floor, 1u);
}

// Calls `emit(rank, entry)` for the K best of the `pooled` entries of the pool, with entry 0 where there are fewer. Called by the
// whole CTA, behind a barrier.
template <class U, class S, class Emit>
__device__ __forceinline__ void rank_pooled(int pooled, Emit emit) {
  constexpr int ENTRIES = 128, EACH = U::THREADS / ENTRIES, BLOCK = 32, PAIRS = BLOCK / EACH / 2;  // EACH threads an entry
  static_assert(U::THREADS % ENTRIES == 0 && BLOCK % (2 * EACH) == 0 && EACH <= 32, "lanes of a warp share an entry");
  if (pooled > 2 * ENTRIES) {
    constexpr int OWN = (U::POOL + U::THREADS - 1) / U::THREADS;
    uint64_t again[OWN];
#pragma unroll
    for (int i = 0; i < OWN; ++i) {
      const int at = i * U::THREADS + int(threadIdx.x);
      again[i] = at < pooled ? S::pool()[at] : 0;
    }
    pooled = pick::narrow<U, S, OWN>([&](int i) { return again[i]; });
  }
  // What lies between the pooled and the next whole block must not count.
  if (threadIdx.x < BLOCK) S::pool()[pooled + threadIdx.x] = 0;
  if (int(threadIdx.x) >= pooled && threadIdx.x < U::K) emit(int(threadIdx.x), uint64_t(0));
  __syncthreads();
  const int part = threadIdx.x % EACH;
#pragma unroll 1
  for (int base = 0; base + int(threadIdx.x) / 32 * (32 / EACH) < pooled; base += ENTRIES) {  // alike in a warp
    const int i = base + int(threadIdx.x) / EACH;
    const uint64_t mine = i < pooled ? S::pool()[i] : ~uint64_t(0);
    int better = 0;
#pragma unroll 1
    for (int j = part * (BLOCK / EACH); j < pooled; j += BLOCK) {
      uint4 two[PAIRS];
#pragma unroll
      for (int pair = 0; pair < PAIRS; ++pair) two[pair] = ptx::load_shared16(S::pool() + j + 2 * pair);
#pragma unroll
      for (int pair = 0; pair < PAIRS; ++pair) {
        better += int((uint64_t(two[pair].y) << 32 | two[pair].x) > mine);
        better += int((uint64_t(two[pair].w) << 32 | two[pair].z) > mine);
      }
    }
#pragma unroll
    for (int step = 1; step < EACH; step *= 2) better += __shfl_xor_sync(0xffffffffu, better, step);
    if (i < pooled && better < U::K && part == 0) emit(better, mine);
  }
}

// Calls `emit(rank, entry)` for the K best of `entry(0 .. COUNT)` of all threads, with entry 0 where there are fewer; `high(i)`
// is the upper half of `entry(i)`, and at least K entries reach `floor`, or all may if it is 1. Called by the whole CTA; COUNT
// is at most 32, and entry 0 is none.
template <class U, class S, int COUNT, class High, class Entry, class Emit>
__device__ __forceinline__ void select_from(uint32_t floor, High high, Entry entry, Emit emit) {
  static_assert(COUNT <= 32 && U::POOL >= U::K * COUNT, "one bit an entry, and room for K threads");
  uint32_t mine = 0;
#pragma unroll
  for (int i = 0; i < COUNT; ++i) mine |= uint32_t(high(i) >= floor) << i;
  pick::pool<U, S, COUNT>(entry, mine);
  __syncthreads();
  int pooled = S::count()[0];
  if (pooled > U::POOL) pooled = pick::narrow<U, S, COUNT>(entry);
  rank_pooled<U, S>(pooled, emit);
}

// The same where no floor is known.
template <class U, class S, int COUNT, class High, class Entry, class Emit>
__device__ __forceinline__ void select(High high, Entry entry, Emit emit) {
  select_from<U, S, COUNT>(lead_floor<U, S, COUNT>(high), high, entry, emit);
}

}  // namespace kd
