// What lm_head.cuh makes, with products by warpgroups (wgmma.cuh): sm_90a only. Sums pass through shared memory of their own, so
// that the blocks of the next tile are on their way while a tile is described.
#pragma once

#include "dense/lm_head.cuh"
#include "dense/wgmma.cuh"

namespace kd {
namespace head {

// A tile's sums, KEPT tokens at a time. By all consumers and, with HELPERS, as many warps that have no sums: a tile of 160 x 64 is 16
// descriptions, one for each of 16 warps.
template <class U, class S, bool HELPER>
__device__ __forceinline__ void leave(const wgmma::Sums<U>& sum, int token, int row, float* logits, float* tiles, int M, int N) {
  constexpr int CONSUMERS = wgmma::Tile<U>::CONSUMERS, ALL = CONSUMERS + 32 * U::HELPERS, PARTS = U::ROWS / TILE, EACH = U::KEPT / 8;
  static_assert(U::ROWS % TILE == 0 && U::ROWS % 16 == 0 && U::KEPT % 8 == 0, "whole tiles and warps");
  // Unknown to the compiler, which would keep what follows from it in registers beside the sums.
  const int thread = ptx::opaque(int(threadIdx.x) - (HELPER ? 32 : 0)), warp = thread / 32, g = thread % 32 / 4, t = thread % 4;
#pragma unroll
  for (int begin = 0; begin < U::NT; begin += EACH) {
    ptx::named_barrier<ALL>(1);  // what was kept before has been read
    if (!HELPER && 16 * warp < U::ROWS) {
#pragma unroll
      for (int n = begin; n < begin + EACH && n < U::NT; ++n)
#pragma unroll
        for (int c = 0; c < 4; ++c)
          S::sums()[(8 * (n - begin) + 2 * t + c % 2) * U::LINE + 16 * warp + g + c / 2 * 8] = sum[n][c];
    }
    ptx::named_barrier<ALL>(1);
    const int rows = 8 * (U::NT - begin < EACH ? U::NT - begin : EACH);
    describe<PARTS>(rows, token + 8 * begin, row / TILE, warp, ALL / 32, logits, tiles, M, N, [](int own, int quad) {
      return *reinterpret_cast<const float4*>(S::sums() + own * U::LINE + quad * 4);
    });
  }
}

}  // namespace head

template <class U, class S>
__device__ __forceinline__ void lm_head_wgmma(const ptx::TensorMap& x, const ptx::TensorMap& w, float* logits, float* tiles, int M,
                                              int N) {
  using At = wgmma::Tile<U>;
  static_assert(U::HELPERS == 0 || U::TAKEN == 0, "helpers lie right behind the warp that asks, and have registers for a description");
  wgmma::start<U, S>(x, w);
  wgmma::Work<U> work(M, N);
  if (threadIdx.x >= At::CONSUMERS) {
    if constexpr (U::TAKEN > 0) ptx::give_registers<24>();
    if (threadIdx.x < At::CONSUMERS + 32) {
      wgmma::produce<U, S>(x, w, work);
    } else if constexpr (U::HELPERS > 0) {
      const wgmma::Sums<U> none = {};
      for (; work.more(); work.next()) {
        ptx::grid_dependency_wait();
        head::leave<U, S, true>(none, work.token(), work.row(), logits, tiles, M, N);
      }
    }
  } else {
    if constexpr (U::TAKEN > 0) ptx::take_registers<U::TAKEN>();
    wgmma::Place<U> place{0, 0};
#pragma unroll 1
    for (; work.more(); work.next()) {
      wgmma::Sums<U> sum;
      wgmma::consume<U, S>(sum, 0, place);
      ptx::grid_dependency_wait();  // nobody else may still read what is written now
      head::leave<U, S, false>(sum, work.token(), work.row(), logits, tiles, M, N);
    }
  }
}

}  // namespace kd
