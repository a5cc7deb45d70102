// Copies of 8 bytes from global to shared memory that run beside the threads (PTX ISA: cp.async).
#pragma once

#include <stdint.h>

namespace kd::ptx {

// 8 bytes to the shared address `to`; zeros, and no read, if not `live`.
__device__ __forceinline__ void copy8(uint32_t to, const void* from, bool live) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(to), "l"(from), "r"(live ? 8 : 0) : "memory");
}

}  // namespace kd::ptx
