// Stores of values that other CTAs wait for, each of which is there or not (PTX ISA: st.relaxed).
#pragma once

#include <stdint.h>

namespace kd::ptx {

__device__ __forceinline__ void store_device(float* address, float value) {
  asm volatile("st.relaxed.gpu.global.f32 [%0], %1;" ::"l"(address), "f"(value) : "memory");
}

// The same for one, two or four neighbours.
__device__ __forceinline__ void store_device(float* address, const float (&value)[1]) { store_device(address, value[0]); }
__device__ __forceinline__ void store_device(float* address, const float (&value)[2]) {
  asm volatile("st.relaxed.gpu.global.v2.f32 [%0], {%1, %2};" ::"l"(address), "f"(value[0]), "f"(value[1]) : "memory");
}
__device__ __forceinline__ void store_device(float* address, const float (&value)[4]) {
  asm volatile("st.relaxed.gpu.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(address), "f"(value[0]), "f"(value[1]), "f"(value[2]),
               "f"(value[3])
               : "memory");
}

}  // namespace kd::ptx
