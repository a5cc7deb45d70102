// The second half of the experts for many rows on sm_90a: the down product of each (row, expert) pair, not yet weighted.
#pragma once

#include "moe/wgmma.cuh"
#include "ptx/pdl.cuh"

namespace kd {

template <class U, class S>
__device__ __forceinline__ void moe_down_wgmma(Int4G32 w, const __nv_bfloat16* h, const int32_t* plan,
                                               const int32_t* slabs, float* parts, int E, int R, int L) {
  ptx::grid_dependency_wait();
  ptx::grid_dependency_launch();
  constexpr int STEPS = moe::Warpgroup<U>::STEPS;
  const moe::SlabOrder<STEPS> order{slabs, moe::share_of_cta(), ptx::load4(plan) * STEPS};
  moe::warpgroup_products<U, S>(
      w.blocks, order, h, [](int place) { return place; },
      [&](const moe::Slab& slab, int step, const auto& sums) {
        constexpr int NT = sizeof(sums[0]) / sizeof(sums[0][0]);
        // As in moe_gate_up_wgmma.
        const int all = ptx::opaque(int(threadIdx.x)), group = all / 128, warp = all % 128 / 32, g = all % 32 / 4, t = all % 4;
        float* to = parts + int64_t(slab.first + 2 * t) * U::H + (step * U::GROUPS + group) * (64 * U::TILES) + 16 * warp + g;
#pragma unroll
        for (int j = 0; j < NT; ++j) {
          const int valid = slab.rows - (8 * j + 2 * t);
#pragma unroll
          for (int m = 0; m < U::TILES; ++m) {
            const float(&sum)[4] = sums[m][j];
            float* own = to + int64_t(8 * j) * U::H + 64 * m;
            if (valid > 0) own[0] = sum[0] * INT4_LOWER, own[8] = sum[2] * INT4_LOWER;
            if (valid > 1) own[U::H] = sum[1] * INT4_LOWER, own[U::H + 8] = sum[3] * INT4_LOWER;
          }
        }
      });
}

}  // namespace kd
