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

// Two words, eight bytes aligned to as many: both are there or neither.
__device__ __forceinline__ void store_device8(int32_t* address, uint2 value) {
  asm volatile("{\n\t.reg .b64 both;\n\tmov.b64 both, {%1, %2};\n\tst.relaxed.gpu.global.b64 [%0], both;\n\t}" ::"l"(address),
               "r"(value.x), "r"(value.y)
               : "memory");
}

// Two neighbouring pairs of words, each as it was stored by one store_device8.
__device__ __forceinline__ uint4 load_device16(const int32_t* address) {
  uint4 value;
  asm volatile(
      "{\n\t.reg .b64 low, high;\n\tld.relaxed.gpu.global.v2.b64 {low, high}, [%4];\n\t"
      "mov.b64 {%0, %1}, low;\n\tmov.b64 {%2, %3}, high;\n\t}"
      : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
      : "l"(address)
      : "memory");
  return value;
}

}  // namespace kd::ptx
