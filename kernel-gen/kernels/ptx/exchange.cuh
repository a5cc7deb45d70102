// Writes to another CTA of the cluster that a barrier in its shared memory counts, and requests to the L2 (PTX ISA: st.async,
// mapa, mbarrier.try_wait, cp.async.bulk.prefetch).
#pragma once

#include "ptx/bulk.cuh"
#include "ptx/tensor.cuh"

namespace kd::ptx {

// Four floats to `address` in the CTA of rank `rank`, whose `barrier` counts their 16 bytes; both are addresses in this CTA.
__device__ __forceinline__ void send16(float* address, float4 value, uint64_t* barrier, int rank) {
  asm volatile(
      "{\n\t.reg .u32 there, counter;\n\tmapa.shared::cluster.u32 there, %0, %2;\n\tmapa.shared::cluster.u32 counter, %1, %2;\n\t"
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [there], {%3, %4, %5, %6}, [counter];\n\t}" ::"r"(
          shared_address(address)),
      "r"(shared_address(barrier)), "r"(rank), "f"(value.x), "f"(value.y), "f"(value.z), "f"(value.w)
      : "memory");
}

// barrier_wait for a phase that other CTAs of the cluster complete: what they sent is visible after.
__device__ __forceinline__ void barrier_wait_cluster(uint64_t* barrier, uint32_t parity) {
  asm volatile(
      "{\n\t.reg .pred done;\n\t"
      "AGAIN:\n\tmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n\t"
      "@!done bra AGAIN;\n\t}" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
}

// Lets the SM have what a driver made of a matrix, a parameter of the kernel, before its first box is asked for.
__device__ __forceinline__ void prefetch(const TensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

// Lets the L2 have `bytes` bytes (a multiple of 16, the address too) of global memory.
__device__ __forceinline__ void prefetch(const void* from, uint32_t bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
}

}  // namespace kd::ptx
