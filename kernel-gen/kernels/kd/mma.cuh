// Products of 16 weight rows and 8 tokens over 32 values of k, each operand row-major with k innermost.
//
// A sum over k may visit k in any order as long as both operands agree. So thread t of a row's four takes the eight
// neighbouring values 8t .. 8t + 8 of both as one 16-byte vector, and feeds them to two mma of 16: no operand is shuffled,
// and weights go from memory to the tensor core through registers alone.
#pragma once

#include "kd/vec.cuh"
#include "ptx/mma.cuh"

namespace kd {

// `low` and `high` are the vectors of weight rows g and g + 8, `x` that of token g, for g = lane / 4.
__device__ __forceinline__ void mma_k32(float (&sum)[4], const Bf16x8& low, const Bf16x8& high, const Bf16x8& x) {
  ptx::mma_16816_bf16(sum, low.word[0], high.word[0], low.word[1], high.word[1], x.word[0], x.word[1]);
  ptx::mma_16816_bf16(sum, low.word[2], high.word[2], low.word[3], high.word[3], x.word[2], x.word[3]);
}

}  // namespace kd
