// The first half of the experts for many rows on sm_90a: silu(gate x) * up x for each (row, expert) pair, in the order of the list of
// rows, pairs of values as the second half takes them.
#pragma once

#include "moe/activate.cuh"
#include "moe/wgmma.cuh"
#include "ptx/pdl.cuh"

namespace kd {

template <class U, class S>
__device__ __forceinline__ void moe_gate_up_wgmma(Int4G32 w, const __nv_bfloat16* x, const int32_t* plan,
                                                  const int32_t* slabs, const int32_t* rows, __nv_bfloat16* h,
                                                  int E, int M, int L, int R) {
  ptx::grid_dependency_wait();
  ptx::grid_dependency_launch();
  using W = moe::Warpgroup<U>;
  const moe::SlabOrder<W::STEPS> order{slabs, moe::share_of_cta(), ptx::load4(plan) * W::STEPS};
  moe::warpgroup_products<U, S>(
      w.blocks, order, x, [&](int place) { return ptx::load4(rows + place); },
      [&](const moe::Slab& slab, int step, const auto& sums) {
        constexpr int NT = sizeof(sums[0]) / sizeof(sums[0][0]);
        // In the place of sums that have been added up. A row, 32 values of one token, is 64 bytes; 80 apart writes of a tile fall into
        // different banks.
        constexpr int STRIDE = 40;
        // Made here: kept over the products, it would not fit into registers.
        const int all = ptx::opaque(int(threadIdx.x)), group = all / 128, thread = all % 128, warp = thread / 32;
        const int g = thread % 32 / 4, t = thread % 4;
        __nv_bfloat16* tile = reinterpret_cast<__nv_bfloat16*>(S::totals() + group * (S::TOTALS_COUNT / U::GROUPS));
#pragma unroll
        for (int m = 0; m < U::TILES; ++m) {
          const int columns = (step * U::GROUPS + group) * U::TILES + m;
          ptx::named_barrier<128>(1 + group);
          // Rows g of a tile of weights are gate, rows g + 8 up: values 8 * warp + g of the 32.
          const int own = 16 * (g / 4) + 8 * (g / 2 % 2) + 2 * warp + g % 2;
#pragma unroll
          for (int j = 0; j < NT; ++j)
#pragma unroll
            for (int i = 0; i < 2; ++i)
              tile[(8 * j + 2 * t + i) * STRIDE + own] = moe::activate(sums[m][j][i], sums[m][j][i + 2], g);
          ptx::named_barrier<128>(1 + group);
#pragma unroll
          for (int i = thread; i < 8 * NT * 4; i += 128)
            if (i / 4 < slab.rows)
              store8(h, int64_t(slab.first + i / 4) * (U::I / 8) + columns * 4 + i % 4,
                     from_words(*reinterpret_cast<const uint4*>(tile + i / 4 * STRIDE + i % 4 * 8)));
        }
        ptx::named_barrier<128>(1 + group);
      });
}

}  // namespace kd
