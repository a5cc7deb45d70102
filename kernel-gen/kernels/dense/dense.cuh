// Streaming GEMM: weights on the m16 side of the tensor core, tokens on the n8 side.
//
// A CTA has ROWS weight rows, TOKENS tokens and one segment of K; the CTAs of a cluster have the segments of one tile and
// add them through distributed shared memory. Each warp streams 16 * MT rows of weights through registers, STEPS blocks of
// 32 ahead of the tensor core and the first of them before the kernel in front has finished; tokens come from L1.
#pragma once

#include "kd/mma.cuh"
#include "ptx/cluster.cuh"
#include "ptx/pdl.cuh"

namespace kd {
namespace gemm {

template <class U>
struct Place {
  static constexpr int VECS = U::K / 8, BLOCKS = U::SEG / 32;
  // Only the last segment can be shorter.
  static constexpr bool EXACT = U::K % U::SEG == 0 && BLOCKS % U::STEPS == 0;

  int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  int segment = blockIdx.x;
  int64_t token = int64_t(blockIdx.y) * U::TOKENS;
  int row = blockIdx.z * U::ROWS + warp * 16 * U::MT;

  // Whether block `block` of 32 is part of this segment; the same for all threads.
  __device__ __forceinline__ bool holds(int block) const {
    return EXACT || (block < BLOCKS && segment * U::SEG + 32 * block < U::K);
  }
  __device__ __forceinline__ int vec(int block) const { return (segment * U::SEG + 32 * block) / 8 + t; }
};

template <class U>
struct Stage {
  Bf16x8 low[U::STEPS][U::MT], high[U::STEPS][U::MT];
};

template <class U>
__device__ __forceinline__ void load(const Place<U>& at, const __nv_bfloat16* w, int N, int first, Stage<U>& stage) {
#pragma unroll
  for (int i = 0; i < U::STEPS; ++i) {
#pragma unroll
    for (int m = 0; m < U::MT; ++m) {
      const int row = at.row + 16 * m + at.g;
      stage.low[i][m] = stage.high[i][m] = {};
      if (first + i >= Place<U>::BLOCKS || !at.holds(first + i)) continue;
      if (row < N) stage.low[i][m] = load8_constant(w, int64_t(row) * Place<U>::VECS + at.vec(first + i));
      if (row + 8 < N) stage.high[i][m] = load8_constant(w, int64_t(row + 8) * Place<U>::VECS + at.vec(first + i));
    }
  }
}

template <class U>
__device__ __forceinline__ void multiply(const Place<U>& at, const __nv_bfloat16* x, int M, int first,
                                         const Stage<U>& stage, float (&sum)[U::TILES][U::MT][4]) {
#pragma unroll
  for (int i = 0; i < U::STEPS; ++i) {
    if (!at.holds(first + i)) continue;
    Bf16x8 own[U::TILES] = {};
#pragma unroll
    for (int tile = 0; tile < U::TILES; ++tile)
      if (at.token + 8 * tile + at.g < M)
        own[tile] = load8(x, (at.token + 8 * tile + at.g) * Place<U>::VECS + at.vec(first + i));
#pragma unroll
    for (int tile = 0; tile < U::TILES; ++tile)
#pragma unroll
      for (int m = 0; m < U::MT; ++m) mma_k32(sum[tile][m], stage.low[i][m], stage.high[i][m], own[tile]);
  }
}

// This CTA's share of the cluster's tile, four rows of one token at a time.
template <class U, class S, class Store>
__device__ __forceinline__ void combine(const Place<U>& at, int M, int N, Store store) {
  constexpr int QUADS = U::ROWS / 4;
  for (int i = at.segment * U::THREADS + int(threadIdx.x); i < U::TOKENS * QUADS; i += U::SEGS * U::THREADS) {
    const int64_t token = at.token + i / QUADS;
    const int row = blockIdx.z * U::ROWS + i % QUADS * 4;
    if (token >= M || row >= N) continue;
    const float* mine = S::sums() + i / QUADS * U::LINE + i % QUADS * 4;
    float4 sum = ptx::load_cluster16(mine, 0);
#pragma unroll
    for (int segment = 1; segment < U::SEGS; ++segment) {
      const float4 next = ptx::load_cluster16(mine, segment);
      sum.x += next.x, sum.y += next.y, sum.z += next.z, sum.w += next.w;
    }
    store(token * N + row, sum);
  }
}

template <class U, class S, class Store>
__device__ __forceinline__ void product(const __nv_bfloat16* x, const __nv_bfloat16* w, int M, int N, Store store) {
  const Place<U> at;
  Stage<U> even, odd;
  load<U>(at, w, N, 0, even);
  ptx::grid_dependency_wait();
  float sum[U::TILES][U::MT][4] = {};
#pragma unroll 1
  for (int stage = 0; stage < U::STAGES; stage += 2) {
    load<U>(at, w, N, (stage + 1) * U::STEPS, odd);
    multiply<U>(at, x, M, stage * U::STEPS, even, sum);
    if (stage + 1 == U::STAGES) break;
    load<U>(at, w, N, (stage + 2) * U::STEPS, even);
    multiply<U>(at, x, M, (stage + 1) * U::STEPS, odd, sum);
  }
  ptx::grid_dependency_launch();
#pragma unroll
  for (int tile = 0; tile < U::TILES; ++tile)
#pragma unroll
    for (int m = 0; m < U::MT; ++m)
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const int token = 8 * tile + 2 * at.t + c % 2, row = at.warp * 16 * U::MT + 16 * m + at.g + 8 * (c / 2);
        S::sums()[token * U::LINE + row] = sum[tile][m][c];
      }
  ptx::cluster_sync();
  combine<U, S>(at, M, N, store);
  ptx::cluster_sync();  // no CTA may leave while its sums are read
}

}  // namespace gemm

template <class U, class S>
__device__ __forceinline__ void dense(const __nv_bfloat16* x, const __nv_bfloat16* w, __nv_bfloat16* y, int M, int N) {
  gemm::product<U, S>(x, w, M, N, [y](int64_t at, float4 sum) {
    const __nv_bfloat162 low = __floats2bfloat162_rn(sum.x, sum.y), high = __floats2bfloat162_rn(sum.z, sum.w);
    uint2 packed;
    packed.x = uint32_t(__bfloat16_as_ushort(low.y)) << 16 | __bfloat16_as_ushort(low.x);
    packed.y = uint32_t(__bfloat16_as_ushort(high.y)) << 16 | __bfloat16_as_ushort(high.x);
    *reinterpret_cast<uint2*>(y + at) = packed;
  });
}

template <class U, class S>
__device__ __forceinline__ void dense_f32(const __nv_bfloat16* x, const __nv_bfloat16* w, float* y, int M, int N) {
  gemm::product<U, S>(x, w, M, N,
                      [y](int64_t at, float4 sum) { *reinterpret_cast<float4*>(y + at) = sum; });
}

}  // namespace kd
