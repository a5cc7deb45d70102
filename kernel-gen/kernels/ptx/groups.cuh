// Groups of the copies that a thread has started (PTX ISA: cp.async.commit_group, cp.async.wait_group), and 2^x.
#pragma once

namespace kd::ptx {

// Everything started since the last call becomes one group.
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Until at most PENDING of the youngest groups of this thread are under way.
template <int PENDING>
__device__ __forceinline__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

// 2^x to about two units in the last place; 0 for -inf, NaN for NaN.
__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace kd::ptx
