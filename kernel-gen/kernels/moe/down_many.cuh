// The second half of the experts for many rows: the down product of each (row, expert) pair, not yet weighted.
#pragma once

#include "moe/many.cuh"
#include "ptx/pdl.cuh"

namespace kd {

template <class U, class S>
__device__ __forceinline__ void moe_down_many(Int4G32 w, const __nv_bfloat16* h, const float* starts, const int32_t* plan,
                                              const int32_t* slabs, float* parts, int E, int R, int L) {
  ptx::grid_dependency_wait();
  ptx::grid_dependency_launch();
  constexpr int STEPS = moe::Many<U>::STEPS;
  const moe::SlabOrder<STEPS> order{slabs, moe::share_of_cta(), ptx::load4(plan) * STEPS};
  moe::many_products<U, S>(
      w.blocks, order, nullptr, h, starts, [](int place) { return place; },
      [&](const moe::Turn& turn, int j, const float(&sum)[4][4]) {
        // As in Supply::bring.
        const int thread = ptx::opaque(int(threadIdx.x)), warp = thread / 32, g = thread % 32 / 4, t = thread % 4;
        const int valid = turn.rows - (8 * j + 2 * t);
        float* to = parts + int64_t(turn.first + 8 * j + 2 * t) * U::H + (turn.step * U::WARPS + warp) * 64 + g;
#pragma unroll
        for (int m = 0; m < 4; ++m, to += 16) {
          if (valid > 0) to[0] = sum[m][0] * INT4_LOWER, to[8] = sum[m][2] * INT4_LOWER;
          if (valid > 1) to[U::H] = sum[m][1] * INT4_LOWER, to[U::H + 8] = sum[m][3] * INT4_LOWER;
        }
      });
}

}  // namespace kd
