// Memory brought to L2 ahead of its use (PTX ISA: cp.async.bulk.prefetch).
#pragma once

#include <stdint.h>

namespace kd::ptx {

// `bytes` (a multiple of 16, the address too) from global memory.
__device__ __forceinline__ void bulk_prefetch(const void* from, uint32_t bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
}

}  // namespace kd::ptx
