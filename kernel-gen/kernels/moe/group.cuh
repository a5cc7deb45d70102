// From the experts of each row to the rows of each expert; and the rows as the products want them.
//
// The choices fall into shares, one after the other. Each of the CTAs that list counts all of them, by share and expert, and so knows where
// the rows of an expert begin in each share; it lists the rows of some of the shares, a warp a share. No order depends on which thread
// came first. All other CTAs lift x.
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

// Lists slabs of at most `most` tiles of 8 rows of the experts, one a thread, as moe/slabs.cuh has them: those with larger slabs first.
template <class U, class S>
__device__ __forceinline__ void list_slabs(int rows, int expert, int first, int most, int32_t* plan, int32_t* slabs) {
  constexpr int BITS = 12;
  static_assert(BITS * (U::MOST / 8 - 1) <= 64, "all sizes but the largest in one sum");
  const Split split(rows, most);
  const bool full = split.largest == most;
  uint64_t all, all_full;
  const uint64_t own = full || rows == 0 ? 0 : uint64_t(split.slabs) << (BITS * (most - 1 - split.largest));
  const uint64_t before = sum_before<U, S>(own, all);
  const uint64_t before_full = sum_before<U, S>(full ? split.slabs : 0, all_full);
  int total = int(all_full), at = int(before_full);
  for (int i = 0; i < most - 1; ++i) {
    if (!full && split.largest == most - 1 - i) at = total + int(before >> (BITS * i) & ((1 << BITS) - 1));
    total += int(all >> (BITS * i) & ((1 << BITS) - 1));
  }
  for (int i = 0; i < split.slabs; ++i) {
    const int from = 8 * split.before(i), to = ::min(8 * split.before(i + 1), rows);
    *reinterpret_cast<int4*>(slabs + 4 * (at + i)) = make_int4(expert, first + from, to - from, 0);
  }
  if (threadIdx.x == 0) plan[0] = total, plan[1] = 0;
}

// Calls `todo` with the choices of share `share`, 32 at a time: `each` of them, a multiple of 32. One warp.
template <class U, class Do>
__device__ __forceinline__ void choices_of(const int32_t* ids, int share, int each, int count, int first_expert, Do todo) {
  constexpr int AT_ONCE = 4;
  const int from = share * each + int(threadIdx.x) % 32;
#pragma unroll 1
  for (int i = 0; i < each; i += 32 * AT_ONCE) {
    int expert[AT_ONCE];
#pragma unroll
    for (int j = 0; j < AT_ONCE; ++j)
      expert[j] = i + 32 * j < each ? choice<U>(ids, from + i + 32 * j, count, first_expert) : -1;
#pragma unroll
    for (int j = 0; j < AT_ONCE; ++j)
      if (i + 32 * j < each) todo(from + i + 32 * j, expert[j]);
  }
}

}  // namespace moe

template <class U, class S>
__device__ __forceinline__ void moe_group(const __nv_bfloat16* x, const int32_t* ids, int32_t first_expert, int32_t slab, int32_t turned,
                                          int32_t* plan, int32_t* entries, int32_t* rows, int32_t* places,
                                          __nv_bfloat16* lifted, float* starts, int M, int L) {
  ptx::grid_dependency_wait();
  ptx::grid_dependency_launch();
  const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32, count = M * U::T, list = int(blockIdx.x);
  constexpr int SHARES = U::THREADS / 32;
  if (list >= U::LISTS) return moe::lift<U>(x, turned != 0, lifted, starts, int64_t(list - U::LISTS) * (U::LIFTS * U::THREADS) + thread, M);
  // Of each share of the choices that there is: how many of each expert, then the place of the next.
  const int each = ::max((count + 32 * SHARES - 1) / (32 * SHARES), 2) * 32, shares = (count + each - 1) / each;
  for (int i = thread; i < shares * U::E; i += U::THREADS) S::counts()[i] = 0;
  __syncthreads();
  if (warp < shares)
    moe::choices_of<U>(ids, warp, each, count, first_expert, [&](int, int expert) {
      if (expert >= 0) atomicAdd(S::counts() + warp * U::E + expert, 1);
    });
  __syncthreads();
  int own = 0;
  if (thread < U::E)
    for (int s = 0; s < shares; ++s) own += S::counts()[s * U::E + thread];
  // Of the experts before this thread's: rows (20 bits), cost (28 bits), and those with rows (16 bits).
  const uint64_t cost = own > 0 ? moe::entry_cost(own, slab) : 0;
  uint64_t all;
  const uint64_t before =
      moe::sum_before<U, S>(uint64_t(own) | cost << 20 | uint64_t(own > 0) << 48, all);
  const int first = int(before & 0xfffff), index = int(before >> 48);
  if (thread < U::E)
    for (int s = 0, place = first; s < shares; ++s) {
      int& count = S::counts()[s * U::E + thread];
      const int mine = count;
      count = place, place += mine;
    }
  if (list == 0 && slab >= U::MANY) {
    moe::list_slabs<U, S>(own, thread, first, slab / 8, plan, entries);
  } else if (list == 0) {
    if (own > 0)
      *reinterpret_cast<int4*>(entries + 4 * index) = make_int4(thread, first, own, int(before >> 20 & 0xfffffff));
    if (thread == 0) plan[0] = int(all >> 48), plan[1] = int(all >> 20 & 0xfffffff), plan[2] = plan[3] = 0;
  }
  __syncthreads();
  const int share = warp * U::LISTS + list;
  if (share >= shares) return;
  int* next = S::counts() + share * U::E;
  moe::choices_of<U>(ids, share, each, count, first_expert, [&](int choice, int expert) {
    // Lanes with the same expert, of which the last leaves the place behind theirs.
    const uint32_t same = __match_any_sync(0xffffffffu, expert);
    const int place = expert >= 0 ? next[expert] + __popc(same & ((1u << lane) - 1)) : -1;
    __syncwarp();
    if (expert >= 0 && same >> lane == 1) next[expert] = place + 1;
    __syncwarp();
    if (expert >= 0) rows[place] = choice / U::T;
    if (choice < count) places[choice] = place;
  });
}

}  // namespace kd
