// Bulk copies into shared memory and the barriers in shared memory that count their bytes (PTX ISA: cp.async.bulk, mbarrier).
#pragma once

#include <stdint.h>

#include "ptx/copy.cuh"

namespace kd::ptx {

// Makes `barrier` complete a phase at every `arrivals` arrivals. One thread; see barriers_ready.
__device__ __forceinline__ void barrier_init(uint64_t* barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}

// Makes this thread's barrier_init visible to copies; other threads need a synchronisation besides.
__device__ __forceinline__ void barriers_ready() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

__device__ __forceinline__ void barrier_arrive(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

// How many arrivals `warps` warps are, each by `barrier_arrive_warp`. In a build for racecheck, which follows a barrier only for threads
// that arrive at it themselves, every lane arrives (docs/kernels/README.md, 5).
#ifdef KD_EVERY_LANE_ARRIVES
constexpr bool EVERY_LANE_ARRIVES = true;
#else
constexpr bool EVERY_LANE_ARRIVES = false;
#endif
__host__ __device__ constexpr uint32_t warp_arrivals(uint32_t warps) { return EVERY_LANE_ARRIVES ? 32 * warps : warps; }

// Arrives for the calling warp, whose lanes have met since the last access that it stands for. `lane` is the caller's own.
__device__ __forceinline__ void barrier_arrive_met(uint64_t* barrier, int lane) {
  if (EVERY_LANE_ARRIVES || lane == 0) barrier_arrive(barrier);
}

// The same for lanes that have yet to meet: what all of them did before is ordered in front of the arrival.
__device__ __forceinline__ void barrier_arrive_warp(uint64_t* barrier, int lane) {
  __syncwarp();
  barrier_arrive_met(barrier, lane);
}

// Arrives, and makes the phase wait for `bytes` bytes of copies besides.
__device__ __forceinline__ void barrier_arrive_expect(uint64_t* barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
               : "memory");
}

// Waits until the phase of this parity has completed; a barrier that was just made has completed the one of parity 1.
__device__ __forceinline__ void barrier_wait(uint64_t* barrier, uint32_t parity) {
  asm volatile(
      "{\n\t.reg .pred done;\n\t"
      "AGAIN:\n\tmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n\t"
      "@!done bra AGAIN;\n\t}" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
}

// True in one lane of a whole warp, always the same. The compiler knows it for one lane, so that what only this lane does
// needs no loop over lanes.
__device__ __forceinline__ bool elect_one() {
  uint32_t elected;
  asm volatile("{\n\t.reg .pred p;\n\telect.sync _|p, 0xffffffff;\n\tselp.u32 %0, 1, 0, p;\n\t}" : "=r"(elected));
  return elected != 0;
}

// Orders accesses to shared memory in front of copies into it that this thread asks for next: its own, and those of threads
// that it has synchronised with. A barrier of threads alone does not (PTX ISA: proxies, fence.proxy).
__device__ __forceinline__ void copies_after_accesses() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// L2 policy for data that is read once.
__device__ __forceinline__ uint64_t evict_first() {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

// L2 policy of copies that name none.
__device__ __forceinline__ uint64_t evict_normal() {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

// Copies `bytes` (a multiple of 16, both addresses too) from global to shared memory; `barrier` counts them.
__device__ __forceinline__ void bulk_load(void* to, const void* from, uint32_t bytes, uint64_t* barrier,
                                          uint64_t policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(
          shared_address(to)),
      "l"(from), "r"(bytes), "r"(shared_address(barrier)), "l"(policy)
      : "memory");
}

// The same for data that is read again.
__device__ __forceinline__ void bulk_load(void* to, const void* from, uint32_t bytes, uint64_t* barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(to)),
               "l"(from), "r"(bytes), "r"(shared_address(barrier))
               : "memory");
}

// Arrives once this thread's copies so far are there.
__device__ __forceinline__ void barrier_arrive_copies(uint64_t* barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(barrier)) : "memory");
}

}  // namespace kd::ptx
