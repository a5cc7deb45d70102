// Values of a group of 32 in the order of a warpgroup's products.
#pragma once

#include "kd/vec.cuh"

namespace kd {
namespace moe {

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

}  // namespace moe
}  // namespace kd
