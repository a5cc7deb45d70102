// Copies from global to shared memory that run beside the threads, and the barriers that tell when they have landed
// (PTX ISA: cp.async, mbarrier, bar.sync).
#pragma once

#include <stdint.h>

namespace kd::ptx {

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return uint32_t(__cvta_generic_to_shared(pointer));
}

// 16 bytes to the shared address `to`, past L1; zeros, and no read, where `keep` is false.
__device__ __forceinline__ void copy16_async(uint32_t to, const void* from, bool keep) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(keep ? 16 : 0) : "memory");
}

// A barrier that `count` arrivals complete, over and over. One thread initialises it, a CTA or cluster barrier follows.
__device__ __forceinline__ void barrier_init(uint64_t* barrier, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(count) : "memory");
}

__device__ __forceinline__ void barrier_arrive(uint64_t* barrier) {
  asm volatile("{\n\t.reg .b64 state;\n\tmbarrier.arrive.shared::cta.b64 state, [%0];\n\t}" ::"r"(shared_address(barrier))
               : "memory");
}

// One of the counted arrivals, as soon as all copies that this thread has started before have landed.
__device__ __forceinline__ void barrier_arrive_copied(uint64_t* barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(barrier)) : "memory");
}

// Until the phase of parity `parity` is complete; a barrier starts in phase 0, and the one before counts as complete.
__device__ __forceinline__ void barrier_wait(uint64_t* barrier, uint32_t parity) {
  asm volatile(
      "{\n\t.reg .pred done;\n"
      "again_%=:\n\tmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n\t@!done bra again_%=;\n\t}" ::"r"(
          shared_address(barrier)),
      "r"(parity)
      : "memory");
}

// A barrier of the first `threads` threads of the CTA; `name` is 1 to 15, and 0 is __syncthreads.
__device__ __forceinline__ void named_barrier(int name, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(name), "r"(threads) : "memory");
}

// 16 bytes, both sides aligned to as many, past the L1 cache.
__device__ __forceinline__ void copy16(uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

// Closes a group: all copies of this thread since the last.
__device__ __forceinline__ void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most PENDING of this thread's groups are unfinished.
template <int PENDING>
__device__ __forceinline__ void copy_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

}  // namespace kd::ptx
