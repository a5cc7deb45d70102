// 8 x 8 matrices of 16-bit values from the layout of mma operands into shared memory (PTX ISA: stmatrix, from sm_90 on).
#pragma once

#include <stdint.h>

namespace kd::ptx {

// Lane i gives the address of row i % 8 of matrix i / 8, 16 aligned bytes; of matrix m, word m of lane i holds two neighbours of row
// i / 4, the (i % 4)-th pair.
__device__ __forceinline__ void stmatrix4(uint32_t row, const uint32_t (&from)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row), "r"(from[0]), "r"(from[1]),
               "r"(from[2]), "r"(from[3])
               : "memory");
}

}  // namespace kd::ptx
