// A warp follows one tree. Each lane holds OWN of its rows, and the row that was visited at the depth of the lane's number.
#pragma once

#include "kd/base.cuh"
#include "ptx/memory.cuh"
#include "ptx/pdl.cuh"

namespace kd {

template <class U, class S_>
__device__ __forceinline__ void walk(const int32_t* tokens, const int32_t* parents, const int32_t* chosen,
                                     const int32_t* firsts, const int32_t* committed, const int32_t* table, int32_t* rows,
                                     int32_t* positions, int32_t* slots, int32_t* counts, int32_t* bonus, int32_t* next,
                                     int M, int S, int P) {
  const int stream = blockIdx.x * U::WARPS + threadIdx.x / 32, lane = threadIdx.x % 32;
  ptx::grid_dependency_wait();
  ptx::grid_dependency_launch();
  if (stream >= S) return;
  const int first = ptx::load4(firsts + stream), base = ptx::load4(committed + stream);
  const int count = ::min(::max(0, ptx::load4(firsts + stream + 1) - first), ::max(0, M - first));
  int token[U::OWN], parent[U::OWN];
#pragma unroll
  for (int i = 0; i < U::OWN; ++i) {
    const int row = lane + 32 * i;
    token[i] = row < count ? ptx::load4(tokens + first + row) : -1;
    parent[i] = row > 0 && row < count ? ptx::load4(parents + first + row) : -1;
  }
  int at = 0, steps = 0, after = -1, visited = -1;
  while (count > 0) {
    if (lane == steps) visited = at;
    ++steps;
    after = ptx::load4(chosen + first + at);
    if (after < 0 || steps == U::D) break;
    int child = -1;
#pragma unroll
    for (int i = 0; i < U::OWN; ++i) {
      const uint32_t found = __ballot_sync(0xffffffffu, parent[i] == at && token[i] == after);
      if (child < 0 && found != 0) child = 32 * i + __ffs(int(found)) - 1;
    }
    if (child <= at) break;
    at = child;
  }
  if (after < 0) steps = 0;
  if (lane < U::D) {
    const bool live = lane < steps;
    const int position = base + lane, page = live && position / 64 < P ? ptx::load4(table + int64_t(stream) * P + position / 64) : -1;
    const int to = stream * U::D + lane;
    rows[to] = live ? first + visited : -1;
    positions[to] = live ? position : 0;
    slots[to] = page >= 0 ? 64 * page + position % 64 : -1;
  }
  if (lane == 0) {
    counts[stream] = steps;
    bonus[stream] = after;
    next[stream] = after < 0 ? -1 : base + steps;
  }
}

}  // namespace kd
