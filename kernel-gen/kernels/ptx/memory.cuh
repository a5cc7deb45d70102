// 16-byte accesses to global memory (PTX ISA: ld, ld.global.nc).
#pragma once

#include <stdint.h>

namespace kd::ptx {

// Data that an earlier kernel wrote. Volatile, so that the compiler cannot move the load in front of a
// grid_dependency_wait; plain `const __restrict__` loads count as invariant and may be moved.
__device__ __forceinline__ uint4 load16(const void* address) {
  uint4 value;
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(address)
               : "memory");
  return value;
}

// Data that no kernel writes (weights): may be read early and through the read-only path.
__device__ __forceinline__ uint4 load16_constant(const void* address) {
  uint4 value;
  asm("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];"
      : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
      : "l"(address));
  return value;
}

}  // namespace kd::ptx
