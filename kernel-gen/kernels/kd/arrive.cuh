// Work that is spread over CTAs and finished by the last of them.
#pragma once

#include "kd/base.cuh"
#include "ptx/memory.cuh"

namespace kd {

// True in all threads of the last of `parts` CTAs to call this on `counter`, which then sees everything that the others
// wrote before their calls, and finds `counter` zero again for the next launch. `flag` is shared memory.
//
// One thread speaks for its CTA: the barriers order what the others wrote before it, and what they read after it.
__device__ __forceinline__ bool arrive_last(int32_t* counter, int parts, int32_t* flag) {
  __syncthreads();
  if (threadIdx.x == 0) {
    const bool last = ptx::add_acquire_release(counter, 1) == parts - 1;
    if (last) *counter = 0;
    *flag = last;
  }
  __syncthreads();
  return *flag != 0;
}

}  // namespace kd
