// Tiles of sums on their way from the tensor core to memory: stores to shared memory with rows and columns exchanged (PTX ISA:
// stmatrix), and copies from there that run beside the threads (PTX ISA: cp.async.bulk).
#pragma once

#include <stdint.h>

#include "ptx/copy.cuh"

namespace kd::ptx {

// Two 8 x 8 tiles of 16-bit values as products leave them: word i of lane 4g + t has columns 2t and 2t + 1 of row g of tile i. Column
// c of tile i goes to the shared address of lane 8i + c, 16 bytes, row after row.
__device__ __forceinline__ void store_columns(uint32_t address, uint32_t first, uint32_t second) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(address), "r"(first), "r"(second)
               : "memory");
}

// Whether the phase of this parity has completed, as barrier_wait has it.
__device__ __forceinline__ bool barrier_test(uint64_t* barrier, uint32_t parity) {
  uint32_t done;
  asm volatile(
      "{\n\t.reg .pred done;\n\tmbarrier.test_wait.parity.shared::cta.b64 done, [%1], %2;\n\tselp.u32 %0, 1, 0, done;\n\t}"
      : "=r"(done)
      : "r"(shared_address(barrier)), "r"(parity)
      : "memory");
  return done != 0;
}

}  // namespace kd::ptx
