// From the experts of each row to the rows of each expert.
//
// Every CTA counts all choices; one warp an expert then lists that expert's rows, ascending, with ballots: no order depends
// on which thread came first.
#pragma once

#include "kd/int4.cuh"
#include "kd/vec.cuh"
#include "ptx/memory.cuh"
#include "ptx/pdl.cuh"

namespace kd {
namespace moe {

// The choice at `index` as an expert of this rank, or -1.
template <class U>
__device__ __forceinline__ int choice(const int32_t* ids, int index, int count, int first_expert) {
  if (index >= count) return -1;
  const int expert = ptx::load4(ids + index) - first_expert;
  return expert >= 0 && expert < U::E ? expert : -1;
}

}  // namespace moe

template <class U, class S>
__device__ __forceinline__ void moe_group(const __nv_bfloat16* x, const int32_t* ids, int32_t first_expert, int32_t slab, int32_t* plan,
                                          int32_t* entries, int32_t* rows, int32_t* places, __nv_bfloat16* lifted, int M) {
  ptx::grid_dependency_wait();
  ptx::grid_dependency_launch();
  if (int(blockIdx.x) >= U::LISTS) {
    const int64_t vec = int64_t(blockIdx.x - U::LISTS) * U::THREADS + threadIdx.x;
    if (vec >= int64_t(M) * (U::H / 8)) return;
    float value[8];
    widen8(load8(x, vec), value);
#pragma unroll
    for (int i = 0; i < 8; ++i) value[i] *= int4_lift(i);
    store8(lifted, vec, narrow8(value));
    return;
  }
  const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32, count = M * U::T;
  int* const counts = S::counts();
  if (thread < U::E) counts[thread] = 0;
  __syncthreads();
  for (int i = thread; i < count; i += U::THREADS) {
    const int expert = moe::choice<U>(ids, i, count, first_expert);
    if (expert >= 0)
      atomicAdd(counts + expert, 1);
    else if (blockIdx.x == 0)
      places[i] = -1;
  }
  __syncthreads();
  // Of the experts before this thread's: rows (low 24 bits), slabs (24 bits), and those with rows (16 bits).
  const int own = thread < U::E ? counts[thread] : 0;
  const uint64_t mine = uint64_t(own) | uint64_t((own + slab - 1) / slab) << 24 | uint64_t(own > 0) << 48;
  uint64_t before = mine;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const uint64_t other = __shfl_up_sync(0xffffffffu, before, step);
    if (lane >= step) before += other;
  }
  if (lane == 31) S::totals()[warp] = before;
  __syncthreads();
  for (int i = 0; i < warp; ++i) before += S::totals()[i];
  before -= mine;
  const int first = int(before & 0xffffff), slabs = int(before >> 24 & 0xffffff), index = int(before >> 48);
  if (thread < U::E) S::firsts()[thread] = first;
  if (blockIdx.x == 0) {
    if (own > 0) *reinterpret_cast<int4*>(entries + 4 * index) = make_int4(thread, first, own, slabs);
    if (thread == U::THREADS - 1) plan[0] = index + (own > 0), plan[1] = slabs + (own + slab - 1) / slab;
  }
  __syncthreads();
  const int expert = blockIdx.x * (U::THREADS / 32) + warp;
  if (expert >= U::E || counts[expert] == 0) return;
  int next = S::firsts()[expert];
  const int end = next + counts[expert];
  for (int base = 0; next < end; base += 128) {
    int found[4], ahead = 0, at = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) found[i] = moe::choice<U>(ids, base + 32 * i + lane, count, first_expert) == expert;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t all = __ballot_sync(0xffffffffu, found[i]);
      at = next + ahead + __popc(all & ((1u << lane) - 1));
      if (found[i]) rows[at] = (base + 32 * i + lane) / U::T, places[base + 32 * i + lane] = at;
      ahead += __popc(all);
    }
    next += ahead;
  }
}

}  // namespace kd
