// Writes to the shared memory of other CTAs of a cluster (PTX ISA: mapa, st.shared::cluster).
#pragma once

#include <stdint.h>

namespace kd::ptx {

// 16 bytes to `address`, an address in this CTA's shared memory, in the CTA of rank `rank`: there after a cluster_sync.
__device__ __forceinline__ void store_cluster16(void* address, int rank, uint4 value) {
  asm volatile(
      "{\n\t.reg .u32 there;\n\tmapa.shared::cluster.u32 there, %0, %1;\n\t"
      "st.shared::cluster.v4.u32 [there], {%2, %3, %4, %5};\n\t}" ::"r"(uint32_t(__cvta_generic_to_shared(address))),
      "r"(rank), "r"(value.x), "r"(value.y), "r"(value.z), "r"(value.w)
      : "memory");
}

// The same for 8 bytes.
__device__ __forceinline__ void store_cluster8(void* address, int rank, uint2 value) {
  asm volatile(
      "{\n\t.reg .u32 there;\n\tmapa.shared::cluster.u32 there, %0, %1;\n\t"
      "st.shared::cluster.v2.u32 [there], {%2, %3};\n\t}" ::"r"(uint32_t(__cvta_generic_to_shared(address))),
      "r"(rank), "r"(value.x), "r"(value.y)
      : "memory");
}

}  // namespace kd::ptx
