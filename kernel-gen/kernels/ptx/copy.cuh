// Copies of 16 bytes from global to shared memory that may be left out (PTX ISA: cp.async), and barriers of some of the
// threads of a CTA (bar.sync).
#pragma once

#include <stdint.h>

namespace kd::ptx {

// 16 bytes to the shared address `to`, past L1, with their whole line to L2.
__device__ __forceinline__ void copy16_ahead(uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

// The same; zeros, and no read, where `keep` is false.
__device__ __forceinline__ void copy16_or_zero(uint32_t to, const void* from, bool keep) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(keep ? 16 : 0)
               : "memory");
}

// A barrier of the first `threads` threads of the CTA; `name` is 1 to 15, and 0 is __syncthreads.
__device__ __forceinline__ void named_barrier(int name, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(name), "r"(threads) : "memory");
}

}  // namespace kd::ptx
