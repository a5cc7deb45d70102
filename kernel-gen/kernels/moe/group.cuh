// From the experts of each row to the rows of each expert; and the rows as the products want them.
//
// Every CTA counts all choices. CTA i then lists the rows of its experts, one warp each: choices of any of them are first
// collected in order, a chunk at a time. No order depends on which thread came first.
#pragma once

#include "kd/int4.cuh"
#include "kd/vec.cuh"
#include "moe/choice.cuh"
#include "moe/many.cuh"
#include "moe/slabs.cuh"
#include "ptx/pdl.cuh"

namespace kd {
namespace moe {

// The sum of `value` over the threads before this one, and over all of them in `total`.
template <class U, class S>
__device__ __forceinline__ uint64_t sum_before(uint64_t value, uint64_t& total) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  uint64_t sum = value;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const uint64_t other = __shfl_up_sync(0xffffffffu, sum, step);
    if (lane >= step) sum += other;
  }
  __syncthreads();  // an earlier sum may still be read
  if (lane == 31) S::totals()[warp] = sum;
  __syncthreads();
  static_assert(U::THREADS == 1024, "one total for each lane");
  uint64_t others = S::totals()[lane];
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const uint64_t other = __shfl_up_sync(0xffffffffu, others, step);
    if (lane >= step) others += other;
  }
  total = __shfl_sync(0xffffffffu, others, 31);
  const uint64_t before = __shfl_sync(0xffffffffu, others, ::max(warp - 1, 0));
  return sum - value + (warp > 0 ? before : 0);
}

// Word i of lane t of each four becomes word t of lane i: the order in which a warpgroup's products take a group (moe/wgmma.cuh).
__device__ __forceinline__ Bf16x8 turn(Bf16x8 v) {
  const int t = threadIdx.x % 4;
#pragma unroll
  for (int step = 1; step < 4; step *= 2)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i & step) continue;
      uint32_t &low = v.word[i], &high = v.word[i + step];
      const uint32_t other = __shfl_xor_sync(0xffffffffu, t & step ? low : high, step);
      (t & step ? low : high) = other;
    }
  return v;
}

// Rows of x as the tensor core takes them beside raw codes (kd/int4.cuh), and where the sums of their groups start. Four lanes have
// a group, so a warp's values are the operand of eight tokens' groups as they lie.
template <class U>
__device__ __forceinline__ void lift(const __nv_bfloat16* x, bool turned, __nv_bfloat16* lifted, float* starts, int64_t vec, int M) {
  const uint4 bias = start_bias();
  const int64_t vecs = int64_t(M) * (U::H / 8);
  // All on their way before the first is used.
  Bf16x8 from[U::LIFTS];
#pragma unroll
  for (int part = 0; part < U::LIFTS; ++part) from[part] = load8(x, vec + part * U::THREADS < vecs ? vec + part * U::THREADS : 0);
#pragma unroll
  for (int part = 0; part < U::LIFTS; ++part, vec += U::THREADS) {
    const bool live = vec < vecs;
    float value[8];
    widen8(from[part], value);
#pragma unroll
    for (int i = 0; i < 8; ++i) value[i] *= int4_lift(i);
    const Tokens<1> group{{narrow8(value)}};
    const Bf16x8 own = turned ? turn(group.tile[0]) : group.tile[0];
    if (live) store8(lifted, vec, own);
    float start[1][4];
    start_of<1>(group, bias, start);
    // Lane t of the first four has the starts of groups 2t and 2t + 1 of the warp's eight.
    const int lane = threadIdx.x % 32;
    const int64_t first = (vec - lane) / 4 + 2 * lane;
#pragma unroll
    for (int i = 0; i < 2; ++i)
      if (lane < 4 && first + i < int64_t(M) * (U::H / 32)) starts[first + i] = start[0][i];
  }
}

// Lists slabs of at most SLAB rows of the experts, one a thread, as moe/slabs.cuh has them: those with larger slabs first.
template <class U, class S>
__device__ __forceinline__ void list_slabs(int rows, int expert, int first, int32_t* plan, int32_t* slabs) {
  constexpr int MOST = U::MANY / 8, BITS = 12;
  static_assert(BITS * (MOST - 1) <= 64, "all sizes but the largest in one sum");
  const Split split(rows, MOST);
  const bool full = split.largest == MOST;
  uint64_t all, all_full;
  const uint64_t own = full || rows == 0 ? 0 : uint64_t(split.slabs) << (BITS * (MOST - 1 - split.largest));
  const uint64_t before = sum_before<U, S>(own, all);
  const uint64_t before_full = sum_before<U, S>(full ? split.slabs : 0, all_full);
  int total = int(all_full), at = int(before_full);
#pragma unroll
  for (int i = 0; i < MOST - 1; ++i) {
    if (!full && split.largest == MOST - 1 - i) at = total + int(before >> (BITS * i) & ((1 << BITS) - 1));
    total += int(all >> (BITS * i) & ((1 << BITS) - 1));
  }
  for (int i = 0; i < split.slabs; ++i) {
    const int from = 8 * split.before(i), to = ::min(8 * split.before(i + 1), rows);
    *reinterpret_cast<int4*>(slabs + 4 * (at + i)) = make_int4(expert, first + from, to - from, 0);
  }
  if (threadIdx.x == 0) plan[0] = total, plan[1] = 0;
}

// Lists the rows of `expert`, places `next` to `end`, by looking at all choices, which lie in S::found: one warp.
template <class U, class S>
__device__ __forceinline__ void list_few(int count, int expert, int next, int end, int32_t* rows, int32_t* places) {
  const int lane = threadIdx.x % 32;
  if (expert >= U::E) return;
  for (int base = 0; next < end; base += 128) {
    bool mine[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int index = base + 32 * i + lane;
      mine[i] = index < count && int(S::found()[index]) == expert;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t lanes = __ballot_sync(0xffffffffu, mine[i]);
      const int index = base + 32 * i + lane, place = next + __popc(lanes & ((1u << lane) - 1));
      if (mine[i]) rows[place] = index / U::T, places[index] = place;
      next += __popc(lanes);
    }
  }
}

}  // namespace moe

template <class U, class S>
__device__ __forceinline__ void moe_group(const __nv_bfloat16* x, const int32_t* ids, int32_t first_expert, int32_t slab, int32_t turned,
                                          int32_t* plan, int32_t* entries, int32_t* rows, int32_t* places,
                                          __nv_bfloat16* lifted, float* starts, int M, int L) {
  ptx::grid_dependency_wait();
  ptx::grid_dependency_launch();
  const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32, count = M * U::T;
  const int list = int(blockIdx.x);
  if (list >= U::LISTS) return moe::lift<U>(x, turned != 0, lifted, starts, int64_t(list - U::LISTS) * (U::LIFTS * U::THREADS) + thread, M);
  for (int e = thread; e < U::E; e += U::THREADS) S::counts()[e] = 0;
  __syncthreads();
  for (int i = thread; i < count; i += U::THREADS) {
    const int expert = moe::choice<U>(ids, i, count, first_expert);
    if (count <= U::FEW) S::found()[i] = uint32_t(expert);
    if (expert >= 0)
      atomicAdd(S::counts() + expert, 1);
    else if (list == 0)
      places[i] = -1;
  }
  __syncthreads();
  // Of the experts before this thread's: rows (20 bits), cost (28 bits), and those with rows (16 bits).
  const int own = thread < U::E ? S::counts()[thread] : 0;
  const uint64_t cost = own > 0 ? moe::entry_cost(own, slab) : 0;
  uint64_t all;
  const uint64_t before =
      moe::sum_before<U, S>(uint64_t(own) | cost << 20 | uint64_t(own > 0) << 48, all);
  const int first = int(before & 0xfffff), index = int(before >> 48);
  if (thread < U::E) S::firsts()[thread] = first;
  if (list == 0 && slab == U::MANY) {
    moe::list_slabs<U, S>(own, thread, first, plan, entries);
  } else if (list == 0) {
    if (own > 0)
      *reinterpret_cast<int4*>(entries + 4 * index) = make_int4(thread, first, own, int(before >> 20 & 0xfffffff));
    if (thread == 0) plan[0] = int(all >> 48), plan[1] = int(all >> 20 & 0xfffffff), plan[2] = plan[3] = 0;
  }
  __syncthreads();
  constexpr int EACH = U::CHUNK / U::THREADS, WARPS = U::THREADS / 32;
  const int expert = list * WARPS + warp;
  int next = expert < U::E ? S::firsts()[expert] : 0;
  if (count <= U::FEW) return moe::list_few<U, S>(count, expert, next, next + S::counts()[::min(expert, U::E - 1)], rows, places);
  for (int base = 0; base < count; base += U::CHUNK) {
    int local[EACH], found = 0;
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
      const int chosen = moe::choice<U>(ids, base + thread * EACH + i, count, first_expert);
      local[i] = chosen >= 0 && chosen / WARPS == list ? chosen % WARPS : -1;
      found += local[i] >= 0;
    }
    int at = int(moe::sum_before<U, S>(found, all));
#pragma unroll
    for (int i = 0; i < EACH; ++i)
      if (local[i] >= 0) S::found()[at++] = uint32_t(thread * EACH + i) << 8 | local[i];
    __syncthreads();
    for (int i = lane; i - lane < int(all); i += 32) {
      const uint32_t entry = i < int(all) ? S::found()[i] : 0xff;
      const bool mine = int(entry & 0xff) == warp;
      const uint32_t lanes = __ballot_sync(0xffffffffu, mine);
      if (mine) {
        const int choice = base + int(entry >> 8), place = next + __popc(lanes & ((1u << lane) - 1));
        rows[place] = choice / U::T, places[choice] = place;
      }
      next += __popc(lanes);
    }
  }
}

}  // namespace kd
