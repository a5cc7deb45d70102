// Products of 16 weight rows and 8 tokens over k, each operand row-major with k innermost.
//
// A sum over 16 values of k may visit them in any order as long as both operands agree. So thread t of a row's four takes the four
// neighbouring values 4t .. 4t + 4 of both: 8 bytes of shared memory. What comes from memory straight to registers comes as vectors of
// 16 bytes, 32 values of k by the four threads, and neighbours exchange a half: then each has its four of both sixteens.
#pragma once

#include "kd/vec.cuh"
#include "ptx/mma.cuh"

namespace kd {

// Over 32 values of k, four of each 16 a thread: `low` and `high` are those of weight rows g and g + 8, `x` those of token g, for
// g = lane / 4.
__device__ __forceinline__ void mma_k32(float (&sum)[4], const Bf16x8& low, const Bf16x8& high, const Bf16x8& x) {
  ptx::mma_16816_bf16(sum, low.word[0], high.word[0], low.word[1], high.word[1], x.word[0], x.word[1]);
  ptx::mma_16816_bf16(sum, low.word[2], high.word[2], low.word[3], high.word[3], x.word[2], x.word[3]);
}

// Which of the four vectors of a row's 32 values of k thread t loads, if it deals them.
__device__ __forceinline__ int dealt_piece(int t) { return t % 2 * 2 + t / 2; }

// Of 32 values of k, this thread's four of the first 16 and of the last. By whole warps.
__device__ __forceinline__ void deal(Bf16x8& own) {
  const bool odd = threadIdx.x % 2;
  const uint32_t first = __shfl_xor_sync(0xffffffffu, odd ? own.word[0] : own.word[2], 1);
  const uint32_t second = __shfl_xor_sync(0xffffffffu, odd ? own.word[1] : own.word[3], 1);
  if (odd)
    own.word[0] = first, own.word[1] = second;
  else
    own.word[2] = first, own.word[3] = second;
}

}  // namespace kd
