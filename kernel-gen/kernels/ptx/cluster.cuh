// Clusters of CTAs and their shared memory (PTX ISA: barrier.cluster, mapa, ld.shared::cluster).
#pragma once

#include <stdint.h>

namespace kd::ptx {

// The two halves of `cluster_sync`: every thread calls both, with work of its own between them.
__device__ __forceinline__ void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

// All threads of all CTAs of the cluster; what they wrote to shared memory before is visible after.
__device__ __forceinline__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release.aligned;\n\tbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// The same without the promise about memory: for CTAs that must not leave while others read their shared memory.
__device__ __forceinline__ void cluster_sync_relaxed() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;\n\tbarrier.cluster.wait.aligned;" ::: "memory");
}

// Four floats at `address`, an address in this CTA's shared memory, in the CTA of rank `rank`.
__device__ __forceinline__ float4 load_cluster16(const float* address, int rank) {
  float4 value;
  asm volatile(
      "{\n\t.reg .u32 there;\n\tmapa.shared::cluster.u32 there, %4, %5;\n\t"
      "ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [there];\n\t}"
      : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
      : "r"(uint32_t(__cvta_generic_to_shared(address))), "r"(rank)
      : "memory");
  return value;
}

}  // namespace kd::ptx
