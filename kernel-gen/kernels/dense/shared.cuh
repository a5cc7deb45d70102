// A product whose warps all copy and all multiply, for many tokens: no registers are left for producers beside sums of
// 64 x 88 a warp, which is what keeps reads of shared memory and of L2 below the rate of the tensor cores.
#pragma once

#include "dense/shape.cuh"
#include "ptx/copy.cuh"
#include "ptx/ldmatrix.cuh"
#include "ptx/mma.cuh"

namespace kd {
namespace gemm {

// Copies of ROWS rows, PITCH apart: a thread copies the same vector of every STRIDE-th row. Rows from `rows` on are left as
// they are, for they meet in no sum that is stored; columns from K on are zero.
template <class U, int ROWS, int PITCH>
struct Copies {
  static constexpr int VECS = U::STEP / 8, STRIDE = U::THREADS / VECS, COUNT = (ROWS + STRIDE - 1) / STRIDE;
  static_assert(STRIDE % 8 == 0, "the same banks in every round");

  const __nv_bfloat16* from;
  uint32_t to;
  int live, k;

  __device__ __forceinline__ Copies(uint32_t ring, const __nv_bfloat16* operand, int rows, int first) {
    const int row = threadIdx.x / VECS, vector = threadIdx.x % VECS;
    k = first * U::STEP + vector * 8;
    from = operand + int64_t(row) * PITCH + k;
    to = ring + place<U>(row, vector);
    live = (rows < ROWS ? rows : ROWS) - row;
  }

  // Copy `i` of COUNT of block `step`, if `wanted`.
  __device__ __forceinline__ void operator()(int i, int step, int slot, bool wanted) const {
    const int row = i * STRIDE;
    if (!wanted || row >= live) return;
    const uint32_t target = to + slot * Shape<U>::SLOT_BYTES + row * Shape<U>::ROW_BYTES;
    const __nv_bfloat16* source = from + step * U::STEP + int64_t(row) * PITCH;
    if (Shape<U>::WHOLE_BLOCKS)
      ptx::copy16_ahead(target, source);
    else
      ptx::copy16_ahead(target, source, k + step * U::STEP < U::K);
  }
};

// Operands of 16 values of k: all of the weights, and of the tokens two tiles of eight at a time.
template <class U>
struct Fragments {
  static constexpr int PAIRS = (U::NT + 1) / 2;
  uint32_t a[2][U::MT][4], b[2][4];

  __device__ __forceinline__ void load_weights(int into, uint32_t weights, int k16) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int m = 0; m < U::MT; ++m)
      ptx::ldmatrix4(a[into][m], weights + m * 16 * Shape<U>::ROW_BYTES + place<U>(lane % 16, 2 * k16 + lane / 16));
  }

  __device__ __forceinline__ void load_tokens(int into, uint32_t tokens, int pair, int k16) {
    const int lane = threadIdx.x % 32;
    const uint32_t from = tokens + pair * 16 * Shape<U>::ROW_BYTES;
    if (2 * pair + 1 < U::NT) {
      ptx::ldmatrix4(b[into], from + place<U>(lane / 16 * 8 + lane % 8, 2 * k16 + lane / 8 % 2));
    } else {
      uint32_t one[2];
      ptx::ldmatrix2(one, from + place<U>(lane % 8, 2 * k16 + lane / 8 % 2));
      b[into][0] = one[0], b[into][1] = one[1];
    }
  }

  __device__ __forceinline__ void multiply(int weights, int tokens, int pair, Sums<U>& sum) const {
#pragma unroll
    for (int half = 0; half < 2 && 2 * pair + half < U::NT; ++half)
#pragma unroll
      for (int m = 0; m < U::MT; ++m)
        ptx::mma_16816_bf16(sum[m][2 * pair + half], a[weights][m][0], a[weights][m][1], a[weights][m][2], a[weights][m][3],
                            b[tokens][2 * half], b[tokens][2 * half + 1]);
  }
};

// One segment of the tile, summed into shared memory. The copies of a block are spread over the products of another: a warp
// whose copies queue up cannot multiply.
template <class U, class S, class Weights, class Tokens, class Wait>
__device__ __forceinline__ void multiply_shared(uint32_t ring, const Weights& weights, const Tokens& tokens, Wait wait) {
  using At = Shape<U>;
  static_assert(U::GROUPS == 1 && U::RUN == 1, "one segment a CTA");
  constexpr int K16S = U::STEP / 16, PAIRS = Fragments<U>::PAIRS, AHEAD = U::SLOTS - 1;
  constexpr int COPIES = Weights::COUNT + Tokens::COUNT, EACH = (COPIES + K16S * PAIRS - 1) / (K16S * PAIRS);
  static_assert(K16S % 2 == 0 && U::SLOTS >= 3, "operands alternate; a slot is read, one has landed, one is filled");
  const int steps = At::EVEN ? At::STEPS : At::blocks(0);
  const int warp = threadIdx.x / 32, row = warp % U::WR * 16 * U::MT, token = warp / U::WR * 8 * U::NT;
#pragma unroll
  for (int step = 0; step < AHEAD; ++step)
#pragma unroll
    for (int i = 0; i < Weights::COUNT; ++i) weights(i, step, step, step < steps);
  wait();
#pragma unroll
  for (int step = 0; step < AHEAD; ++step) {
#pragma unroll
    for (int i = 0; i < Tokens::COUNT; ++i) tokens(i, step, step, step < steps);
    ptx::copy_commit();
  }
  ptx::copy_wait<AHEAD - 1>();
  __syncthreads();
  const uint32_t a = ring + row * At::ROW_BYTES, b = ring + At::WEIGHT_BYTES + token * At::ROW_BYTES;
  Sums<U> sum = {};
  Fragments<U> own;
  own.load_weights(0, a, 0);
  own.load_tokens(0, b, 0, 0);
  int slot = 0, vacant = U::SLOTS - 1, ahead = steps;  // block `ahead`, if there is one, goes to slot `vacant`
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    const int after = slot + 1 == U::SLOTS ? 0 : slot + 1;
#pragma unroll
    for (int k16 = 0; k16 < K16S; ++k16) {
      const bool last = k16 + 1 == K16S;  // what is loaded behind the last block is not used
      if (last) {
        ptx::copy_commit();
        ptx::copy_wait<AHEAD - 2>();
        __syncthreads();  // the next slot has landed for all, and all have used the one before
        ahead = step + AHEAD, vacant = slot == 0 ? U::SLOTS - 1 : slot - 1;
      }
      const uint32_t here = slot * At::SLOT_BYTES, next = last ? after * At::SLOT_BYTES : here;
      const int next_k16 = last ? 0 : k16 + 1;
      own.load_weights((k16 + 1) % 2, a + next, next_k16);
#pragma unroll
      for (int pair = 0; pair < PAIRS; ++pair) {
        const int now = (k16 * PAIRS + pair) % 2;
        if (pair + 1 < PAIRS)
          own.load_tokens(1 - now, b + here, pair + 1, k16);
        else
          own.load_tokens(1 - now, b + next, 0, next_k16);
        own.multiply(k16 % 2, now, pair, sum);
#pragma unroll
        for (int i = ((k16 + 1) % K16S * PAIRS + pair) * EACH; i < ((k16 + 1) % K16S * PAIRS + pair + 1) * EACH; ++i)
          if (i < Weights::COUNT)
            weights(i, ahead, vacant, ahead < steps);
          else if (i < COPIES)
            tokens(i - Weights::COUNT, ahead, vacant, ahead < steps);
      }
    }
    slot = after;
  }
  ptx::copy_wait<0>();
  __syncthreads();  // the sums take the place of the ring
  keep<U, S>(sum, 0, row, token);
}

}  // namespace gemm
}  // namespace kd
