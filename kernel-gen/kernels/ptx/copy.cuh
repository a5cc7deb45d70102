// Copies of 16 bytes from global to shared memory that run beside the threads (PTX ISA: cp.async), and barriers of some of
// the threads of a CTA (bar.sync).
#pragma once

#include <stdint.h>

namespace kd::ptx {

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return uint32_t(__cvta_generic_to_shared(pointer));
}

// 16 bytes to the shared address `to`, both sides aligned to as many, past L1.
__device__ __forceinline__ void copy16(uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

// The same; zeros, and no read, if not `live`.
__device__ __forceinline__ void copy16(uint32_t to, const void* from, bool live) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(live ? 16 : 0) : "memory");
}

// 16 bytes to the shared address `to`, past L1, with their whole line to L2.
__device__ __forceinline__ void copy16_ahead(uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

// The same; zeros, and no read, if not `live`.
__device__ __forceinline__ void copy16_ahead(uint32_t to, const void* from, bool live) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(live ? 16 : 0)
               : "memory");
}

// Everything that this thread has started since the last call becomes one group; an empty group counts.
__device__ __forceinline__ void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most PENDING of this thread's newest groups are unfinished.
template <int PENDING>
__device__ __forceinline__ void copy_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

// A barrier of THREADS threads, whole warps; `name` is 1 to 15, and 0 is __syncthreads. One warp needs none; with one, warps
// that pass theirs a different number of times make racecheck report hazards across every later barrier of the CTA.
template <int THREADS>
__device__ __forceinline__ void named_barrier(int name) {
  if (THREADS == 32)
    __syncwarp();
  else
    asm volatile("bar.sync %0, %1;" ::"r"(name), "n"(THREADS) : "memory");
}

}  // namespace kd::ptx
