// A thread writes one row of one block.
#pragma once

#include "kd/base.cuh"
#include "ptx/memory.cuh"
#include "ptx/pdl.cuh"

namespace kd {

template <class U, class S_>
__device__ __forceinline__ void draft_block(const int32_t* starts, const int32_t* bonus, int32_t mask, int32_t* ids,
                                            int32_t* positions, int S) {
  const int row = blockIdx.x * U::THREADS + threadIdx.x, stream = row / U::BLK, at = row % U::BLK;
  ptx::grid_dependency_wait();
  ptx::grid_dependency_launch();
  if (stream >= S) return;
  const int start = ptx::load4(starts + stream);
  ids[row] = start >= 0 && at == 0 ? ptx::load4(bonus + stream) : mask;
  positions[row] = start >= 0 ? start + at : 0;
}

}  // namespace kd
