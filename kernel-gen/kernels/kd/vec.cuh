// Eight bf16 values as one 16-byte access.
#pragma once

#include "kd/base.cuh"

namespace kd {

struct alignas(16) Bf16x8 {
  __nv_bfloat162 pair[4];
};

// Reads vector `index` of `base`, which must be 16-byte aligned. The 64-bit index keeps rows beyond 2^31 elements right.
__device__ __forceinline__ Bf16x8 load8(const __nv_bfloat16* base, int64_t index) {
  return reinterpret_cast<const Bf16x8*>(base)[index];
}

__device__ __forceinline__ void store8(__nv_bfloat16* base, int64_t index, const Bf16x8& value) {
  reinterpret_cast<Bf16x8*>(base)[index] = value;
}

__device__ __forceinline__ void widen8(const Bf16x8& from, float (&to)[8]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 pair = __bfloat1622float2(from.pair[i]);
    to[2 * i] = pair.x;
    to[2 * i + 1] = pair.y;
  }
}

__device__ __forceinline__ Bf16x8 narrow8(const float (&from)[8]) {
  Bf16x8 to;
#pragma unroll
  for (int i = 0; i < 4; ++i) to.pair[i] = __floats2bfloat162_rn(from[2 * i], from[2 * i + 1]);
  return to;
}

}  // namespace kd
