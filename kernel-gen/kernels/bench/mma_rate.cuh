// The rate of mma.sync: chains of products that depend on nothing but themselves.
#pragma once

#include "kd/base.cuh"
#include "ptx/mma.cuh"

namespace kd {

template <class U, class S>
__device__ __forceinline__ void mma_rate(const __nv_bfloat16* x, int32_t rounds, float* sums, int N) {
  float sum[U::CHAINS][4] = {};
  const uint32_t* pairs = reinterpret_cast<const uint32_t*>(x);
  const uint32_t a = pairs[threadIdx.x % (U::H / 2)], b = pairs[(threadIdx.x + 7) % (U::H / 2)];
#pragma unroll 1
  for (int round = 0; round < rounds; ++round)
#pragma unroll
    for (int chain = 0; chain < U::CHAINS; ++chain) ptx::mma_16816_bf16(sum[chain], a, b, a, b, b, a);
  float total = 0.0f;
#pragma unroll
  for (int chain = 0; chain < U::CHAINS; ++chain) total += sum[chain][0] + sum[chain][1] + sum[chain][2] + sum[chain][3];
  sums[int64_t(blockIdx.x) * U::H + threadIdx.x] = total;
}

}  // namespace kd
