// Reductions over a CTA in a fixed order, the same value in every thread. Called by all of its THREADS threads; `partial` is
// shared memory for one value a warp.
#pragma once

#include "kd/base.cuh"

namespace kd {

template <int THREADS, class T, class Join>
__device__ __forceinline__ T block_reduce(T value, T* partial, Join join) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) value = join(value, __shfl_xor_sync(0xffffffffu, value, step));
  __syncthreads();  // an earlier reduction may still be read
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = value;
  __syncthreads();
  value = partial[0];
#pragma unroll
  for (int warp = 1; warp < THREADS / 32; ++warp) value = join(value, partial[warp]);
  return value;
}

template <int THREADS>
__device__ __forceinline__ float block_max(float value, float* partial) {
  return block_reduce<THREADS>(value, partial, [](float a, float b) { return fmaxf(a, b); });
}

template <int THREADS>
__device__ __forceinline__ float block_sum(float value, float* partial) {
  return block_reduce<THREADS>(value, partial, [](float a, float b) { return a + b; });
}

}  // namespace kd
