// Votes of some of the threads of a CTA (PTX ISA: barrier.red).
#pragma once

#include <stdint.h>

namespace kd::ptx {

// Whether any of THREADS threads, whole warps, says so; they wait for each other at barrier `name`, 1 to 15, as in named_barrier.
template <int THREADS>
__device__ __forceinline__ bool any_of(int name, bool own) {
  uint32_t any;
  asm volatile(
      "{\n\t.reg .pred own, any;\n\tsetp.ne.u32 own, %1, 0;\n\tbarrier.red.or.pred any, %2, %3, own;\n\t"
      "selp.u32 %0, 1, 0, any;\n\t}"
      : "=r"(any)
      : "r"(uint32_t(own)), "r"(name), "n"(THREADS)
      : "memory");
  return any != 0;
}

}  // namespace kd::ptx
