// Accesses to global memory whose place among other accesses matters (PTX ISA: ld, ld.global.nc).
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

// 16 bytes of shared memory whose value the compiler must not know.
__device__ __forceinline__ uint4 load_shared16(const void* address) {
  uint4 value;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "r"(uint32_t(__cvta_generic_to_shared(address)))
               : "memory");
  return value;
}

// One int32 that an earlier kernel wrote.
__device__ __forceinline__ int32_t load4(const int32_t* address) {
  int32_t value;
  asm volatile("ld.global.s32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
  return value;
}

// One f32 or u64 that an earlier kernel, or another CTA before it arrived, wrote.
__device__ __forceinline__ float load4f(const float* address) {
  float value;
  asm volatile("ld.global.f32 %0, [%1];" : "=f"(value) : "l"(address) : "memory");
  return value;
}

// Two neighbouring f32, likewise.
__device__ __forceinline__ float2 load8f(const float* address) {
  float2 value;
  asm volatile("ld.global.v2.f32 {%0, %1}, [%2];" : "=f"(value.x), "=f"(value.y) : "l"(address) : "memory");
  return value;
}

__device__ __forceinline__ uint64_t load8u(const uint64_t* address) {
  uint64_t value;
  asm volatile("ld.global.u64 %0, [%1];" : "=l"(value) : "l"(address) : "memory");
  return value;
}

// The same value, which the compiler cannot know: what is computed from it is not kept from before.
__device__ __forceinline__ int opaque(int value) {
  asm volatile("" : "+r"(value));
  return value;
}

// Data that no kernel writes (weights): may be read early and through the read-only path.
__device__ __forceinline__ uint4 load16_constant(const void* address) {
  // Not inline PTX: without `volatile` the compiler may move it in front of the condition that guards it.
  return __ldg(static_cast<const uint4*>(address));
}

// Adds to a counter of the device; what this thread has seen written before is visible to whoever sees the sum (PTX ISA:
// memory consistency model, acquire and release patterns).
__device__ __forceinline__ int32_t add_acquire_release(int32_t* address, int32_t value) {
  int32_t before;
  asm volatile("atom.add.acq_rel.gpu.global.s32 %0, [%1], %2;" : "=r"(before) : "l"(address), "r"(value) : "memory");
  return before;
}

// The same for who does not ask for the sum.
__device__ __forceinline__ void add_release(int32_t* address, int32_t value) {
  asm volatile("red.release.gpu.global.add.s32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}

// A counter of the device; what was written before it was added to is visible once its sum is.
__device__ __forceinline__ int32_t load_acquire(const int32_t* address) {
  int32_t value;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
  return value;
}

}  // namespace kd::ptx
