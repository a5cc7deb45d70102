// Tiles of sums on their way from the tensor core to memory: stores to shared memory with rows and columns exchanged (PTX ISA: stmatrix).
#pragma once

#include <stdint.h>

namespace kd::ptx {

// Two 8 x 8 tiles of 16-bit values as products leave them: word i of lane 4g + t has columns 2t and 2t + 1 of row g of tile i. Column
// c of tile i goes to the shared address of lane 8i + c, 16 bytes, row after row.
__device__ __forceinline__ void store_columns(uint32_t address, uint32_t first, uint32_t second) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(address), "r"(first), "r"(second)
               : "memory");
}

}  // namespace kd::ptx
