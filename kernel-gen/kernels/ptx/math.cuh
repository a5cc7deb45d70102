// Fast functions (PTX ISA: ex2.approx).
#pragma once

namespace kd::ptx {

// 2^x to about 2 ulp; results below the normal range are 0.
__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace kd::ptx
