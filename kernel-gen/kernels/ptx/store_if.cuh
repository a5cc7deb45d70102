// Stores to shared memory by some lanes, without a branch: those of the compiler part a warp and join it again.
#pragma once

#include <stdint.h>

namespace kd::ptx {

// Eight bytes to `address` if `live`.
__device__ __forceinline__ void store_shared8_if(uint64_t* address, uint64_t value, bool live) {
  asm volatile("{\n\t.reg .pred live;\n\tsetp.ne.u32 live, %2, 0;\n\t@live st.shared.u64 [%0], %1;\n\t}" ::"r"(
                   uint32_t(__cvta_generic_to_shared(address))),
               "l"(value), "r"(uint32_t(live))
               : "memory");
}

// The same for four.
__device__ __forceinline__ void store_shared4_if(void* address, uint32_t value, bool live) {
  asm volatile("{\n\t.reg .pred live;\n\tsetp.ne.u32 live, %2, 0;\n\t@live st.shared.u32 [%0], %1;\n\t}" ::"r"(
                   uint32_t(__cvta_generic_to_shared(address))),
               "r"(value), "r"(uint32_t(live))
               : "memory");
}

}  // namespace kd::ptx
