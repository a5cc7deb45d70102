// The first half of the experts for many rows: silu(gate x) * up x for each (row, expert) pair, in the order of the list of rows,
// and where the sums of its groups start.
#pragma once

#include "moe/activate.cuh"
#include "moe/many.cuh"
#include "ptx/pdl.cuh"

namespace kd {

template <class U, class S>
__device__ __forceinline__ void moe_gate_up_many(Int4G32 w, const __nv_bfloat16* x, const float* starts, int32_t* plan,
                                                 const int32_t* slabs, const int32_t* rows, __nv_bfloat16* h, float* h_starts,
                                                 int E, int M, int L, int R) {
  ptx::grid_dependency_wait();
  ptx::grid_dependency_launch();
  constexpr int STEPS = moe::Many<U>::STEPS;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  // In the place of sums that have been added up. A row of a tile of tokens, one for each lane's g, is 64 bytes; 80 apart their writes fall into different banks.
  constexpr int STRIDE = 40;
  __nv_bfloat16* tile = reinterpret_cast<__nv_bfloat16*>(S::totals() + warp * (S::TOTALS_COUNT / U::WARPS));
  const moe::SlabOrder<STEPS> order{slabs, moe::share_of_cta(), ptx::load4(plan) * STEPS};
  moe::many_products<U, S>(
      w.blocks, order, plan + 2, x, starts, [&](int place) { return ptx::load4(rows + place); },
      [&](const moe::Turn& turn, int j, const float(&sum)[4][4]) {
        const int group = turn.step * U::WARPS + warp;
        __syncwarp();
        // Rows g of a tile of weights are gate, rows g + 8 up.
#pragma unroll
        for (int m = 0; m < 4; ++m)
#pragma unroll
          for (int i = 0; i < 2; ++i) tile[(2 * t + i) * STRIDE + 8 * m + g] = moe::activate(sum[m][i], sum[m][i + 2], g);
        __syncwarp();
        moe::Tokens<1> token{{from_words(*reinterpret_cast<const uint4*>(tile + g * STRIDE + 8 * t))}};
        float start[1][4];
        moe::start_of<1>(token, moe::start_bias(), start);
        const int64_t place = turn.first + 8 * j;
        if (8 * j + g < turn.rows) store8(h, (place + g) * (U::I / 8) + group * 4 + t, token.tile[0]);
        if (g == 0) {
          if (8 * j + 2 * t < turn.rows) h_starts[(place + 2 * t) * (U::I / 32) + group] = start[0][0];
          if (8 * j + 2 * t + 1 < turn.rows) h_starts[(place + 2 * t + 1) * (U::I / 32) + group] = start[0][1];
        }
      });
}

}  // namespace kd
