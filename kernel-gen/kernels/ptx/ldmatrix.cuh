// 8 x 8 matrices of 16-bit values from shared memory into the layout of mma operands (PTX ISA: ldmatrix).
#pragma once

#include <stdint.h>

namespace kd::ptx {

// Lane i gives the address of row i % 8 of matrix i / 8; each row is 16 aligned bytes.
__device__ __forceinline__ void ldmatrix4(uint32_t (&to)[4], uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(row));
}

__device__ __forceinline__ void ldmatrix2(uint32_t (&to)[2], uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];" : "=r"(to[0]), "=r"(to[1]) : "r"(row));
}

// The same, each matrix transposed.
__device__ __forceinline__ void ldmatrix4_transposed(uint32_t (&to)[4], uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(row));
}

// Transposes an 8 x 8 matrix of 16-bit values: lane i holds two neighbours of row i / 4, before and after (PTX ISA: movmatrix).
__device__ __forceinline__ uint32_t transpose(uint32_t from) {
  uint32_t to;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(to) : "r"(from));
  return to;
}

}  // namespace kd::ptx
