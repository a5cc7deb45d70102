// Products for many tokens: as many CTAs as are resident, all of whose warps multiply, and tensor-map copies.
//
// The work on a tile of ROWS weight rows and TOKENS tokens is its SEGS segments, each one chain of mma in ascending k (see
// gemm.cuh, whose sums these are bit by bit). A CTA has a run of segments in order of rows, then k; the CTAs beside it have the
// same rows and other tokens, so that weights come from memory once. Blocks of K follow each other through one ring from the
// first segment of a CTA to its last. What becomes of a segment's sums: totals.cuh.
#pragma once

#include "dense/shape.cuh"
#include "dense/totals.cuh"
#include "ptx/bulk.cuh"
#include "ptx/ldmatrix.cuh"
#include "ptx/mma.cuh"
#include "ptx/pdl.cuh"
#include "ptx/tensor.cuh"

namespace kd {
namespace many {

using gemm::place;
using gemm::Shape;

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

// Fills the ring with a CTA's blocks, from its first segment to its last. By one warp.
template <class U, class S>
struct Filler {
  using At = Shape<U>;
  static constexpr int BLOCKS = At::first(U::SEGS);  // of a row, to the end of its last segment

  const ptx::TensorMap &x, &w;
  int tile, block, left, token, slot = 0, parity = 1;

  __device__ __forceinline__ Filler(const ptx::TensorMap& x, const ptx::TensorMap& w, const Run<U>& run) : x(x), w(w) {
    tile = run.first / U::SEGS, block = At::first(run.first % U::SEGS), token = run.token_tile * U::TOKENS;
    const int last = run.end - 1;
    left = (last / U::SEGS - tile) * BLOCKS + At::first(last % U::SEGS + 1) - block;
  }
  __device__ __forceinline__ void weights() const {
    ptx::barrier_arrive_expect(S::full() + slot, At::SLOT_BYTES);
    ptx::tensor_load(S::ring() + slot * At::SLOT_BYTES, w, block * U::STEP, tile * U::ROWS, S::full() + slot);
  }
  __device__ __forceinline__ void tokens() const {
    ptx::tensor_load(S::ring() + slot * At::SLOT_BYTES + At::WEIGHT_BYTES, x, block * U::STEP, token, S::full() + slot);
  }
  __device__ __forceinline__ void advance() {
    --left;
    if (++block == BLOCKS) block = 0, ++tile;
    if (++slot == U::SLOTS) slot = 0, parity ^= 1;
  }
  // All slots; the weights' before the kernel in front has finished.
  __device__ __forceinline__ void begin() {
    Filler ahead = *this;
    for (int i = 0; i < U::SLOTS && ahead.left > 0; ++i) {
      if (ptx::elect_one()) ahead.weights();
      ahead.advance();
    }
    ptx::grid_dependency_wait();
    for (int i = 0; i < U::SLOTS && left > 0; ++i) {
      if (ptx::elect_one()) tokens();
      advance();
    }
  }
  // The next slot, once all warps have used what is there.
  __device__ __forceinline__ void next() {
    if (left == 0) return;
    ptx::barrier_wait(S::empty() + slot, parity);
    if (ptx::elect_one()) {
      ptx::copies_after_accesses();
      weights();
      tokens();
    }
    __syncwarp();
    advance();
  }
};

}  // namespace many

template <class U, class S>
__device__ __forceinline__ void dense_many(const ptx::TensorMap& x, const ptx::TensorMap& w, float* partial, int32_t* arrived,
                                           __nv_bfloat16* y, int M, int N, int P, int A) {
  using At = gemm::Shape<U>;
  using Own = many::Fragments<U>;
  constexpr int K16S = U::STEP / 16;
  static_assert(K16S % 2 == 0, "operands alternate");
  const many::Run<U> run(M, N, P, A);
  if (run.first >= run.end) return;
  const int warp = threadIdx.x / 32;
  if (threadIdx.x < U::SLOTS) {
    ptx::barrier_init(S::full() + threadIdx.x, 1);
    ptx::barrier_init(S::empty() + threadIdx.x, ptx::warp_arrivals(U::WARPS));
    ptx::barriers_ready();
  }
  __syncthreads();
  many::Filler<U, S> filler(x, w, run);
  if (warp == 0) filler.begin();
  ptx::grid_dependency_wait();
  const uint32_t ring = ptx::shared_address(S::ring());
  const uint32_t a = ring + warp % U::WR * 16 * U::MT * At::ROW_BYTES;
  const uint32_t b = ring + At::WEIGHT_BYTES + warp / U::WR * 8 * U::NT * At::ROW_BYTES;
  gemm::Sums<U> sum = {};
  many::Totals<U> totals{run, partial, arrived};
  Own own;
  ptx::barrier_wait(S::full(), 0);
  own.load_weights(0, a, 0);
  own.load_tokens(0, b, 0, 0);
  int slot = 0, parity = 0;
#pragma unroll 1
  for (int unit = run.first; unit < run.end; ++unit) {
    const int steps = At::first(unit % U::SEGS + 1) - At::first(unit % U::SEGS);
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
      const int after = slot + 1 == U::SLOTS ? 0 : slot + 1, after_parity = after == 0 ? parity ^ 1 : parity;
      const bool more = step + 1 < steps || unit + 1 < run.end;
#pragma unroll
      for (int k16 = 0; k16 < K16S; ++k16) {
        const bool last = k16 + 1 == K16S;  // what is loaded behind the last block is not used
        if (last && more) ptx::barrier_wait(S::full() + after, after_parity);
        const uint32_t here = slot * At::SLOT_BYTES, next = last ? after * At::SLOT_BYTES : here;
        const int next_k16 = last ? 0 : k16 + 1;
        own.load_weights((k16 + 1) % 2, a + next, next_k16);
#pragma unroll
        for (int pair = 0; pair < Own::PAIRS; ++pair) {
          const int now = (k16 * Own::PAIRS + pair) % 2;
          if (pair + 1 < Own::PAIRS)
            own.load_tokens(1 - now, b + here, pair + 1, k16);
          else
            own.load_tokens(1 - now, b + next, 0, next_k16);
          own.multiply(k16 % 2, now, pair, sum);
          // The slot of the step before, which the other warps have left or soon will.
          if (k16 == 0 && pair == 0 && (step > 0 || unit > run.first) && warp == 0) filler.next();
        }
      }
      ptx::barrier_arrive_warp(S::empty() + slot, threadIdx.x % 32);
      slot = after, parity = after_parity;
    }
    if (unit + 1 == run.end) ptx::grid_dependency_launch();
    many::finish(sum, totals, unit, y, M, N);
#pragma unroll
    for (int m = 0; m < U::MT; ++m)
#pragma unroll
      for (int n = 0; n < U::NT; ++n)
#pragma unroll
        for (int c = 0; c < 4; ++c) sum[m][n][c] = 0.0f;
  }
}

}  // namespace kd
