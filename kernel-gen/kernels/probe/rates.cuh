// What the device can do at most: the floors of measurements.
#pragma once

#include "kd/vec.cuh"
#include "ptx/mma.cuh"

namespace kd {

template <class U, class S>
__device__ __forceinline__ void read_rate(const __nv_bfloat16* x, uint32_t* y, int N) {
  const int64_t stride = int64_t(gridDim.x) * blockDim.x, vectors = int64_t(N) * (U::H / 8);
  uint32_t all = ~0u;
  for (int64_t first = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; first < vectors; first += U::AHEAD * stride) {
    Bf16x8 value[U::AHEAD];
#pragma unroll
    for (int i = 0; i < U::AHEAD; ++i) value[i] = load8(x, ::min(first + i * stride, vectors - 1));
#pragma unroll
    for (int i = 0; i < U::AHEAD; ++i) all &= value[i].word[0] & value[i].word[1] & value[i].word[2] & value[i].word[3];
  }
  if (all == ~0u) y[0] = all;
}

template <class U, class S>
__device__ __forceinline__ void mma_rate(const __nv_bfloat16* x, int steps, float* y, int N) {
  const Bf16x8 a = load8(x, threadIdx.x % 4);
  float sum[U::SUMS][4] = {};
  for (int step = 0; step < steps; ++step)
#pragma unroll
    for (int i = 0; i < U::SUMS; ++i)
      ptx::mma_16816_bf16(sum[i], a.word[0], a.word[1], a.word[2], a.word[3], a.word[0], a.word[1]);
  float all = 0.0f;
#pragma unroll
  for (int i = 0; i < U::SUMS; ++i) all += sum[i][0] + sum[i][1] + sum[i][2] + sum[i][3];
  if (all != all) y[blockIdx.x] = all;
}

}  // namespace kd
