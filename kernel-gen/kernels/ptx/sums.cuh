// Sums that CTAs share through memory, and the layout in which they leave the tensor core (PTX ISA: ld, red, movmatrix).
#pragma once

#include <stdint.h>

namespace kd::ptx {

// Four neighbouring f32 as the whole device sees them.
__device__ __forceinline__ float4 load_device16f(const float* address) {
  float4 value;
  asm volatile("ld.relaxed.gpu.global.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
               : "l"(address)
               : "memory");
  return value;
}

// Adds to four neighbouring f32 there, each rounded to nearest.
__device__ __forceinline__ void add_device16f(float* address, float4 value) {
  asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(address), "f"(value.x), "f"(value.y),
               "f"(value.z), "f"(value.w)
               : "memory");
}

}  // namespace kd::ptx
