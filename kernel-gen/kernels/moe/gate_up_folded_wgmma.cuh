// The first half of the experts with folded scales: silu(gate x) * up x for each (row, expert) pair, in the order of the list of rows,
// as f16 with a power of two of the row and the expert, pairs of values as the second half takes them.
#pragma once

#include "kd/int4.cuh"
#include "moe/folded_activate.cuh"
#include "moe/folded_wgmma.cuh"

namespace kd {

template <class U, class S>
__device__ __forceinline__ void moe_gate_up_folded_wgmma(Int4G32 w, const uint8_t* exponents, const int32_t* bounds, const __half* x,
                                                         const int32_t* lifts, const int32_t* norms, int32_t* plan, const int32_t* slabs,
                                                         const int32_t* rows, __half* h, float* lowers, int E, int M, int L, int R) {
  ptx::grid_dependency_wait();
  ptx::grid_dependency_launch();
  moe::folded_warpgroup_products<U, S>(
      w.blocks, exponents, x, slabs, ptx::load4(plan), plan + 1,
      [&](const moe::WarpgroupItem& item, int place) {
        const int row = ptx::load4(rows + place), lift = moe::hidden_lift(ptx::load4(norms + row), ptx::load4(bounds + item.expert));
        if (item.step == 0) lowers[place] = moe::power_of_two(127 - lift);
        return moe::WarpgroupRow{row * U::K, make_float2(moe::power_of_two(127 - ptx::load4(lifts + row)), moe::power_of_two(127 + lift))};
      },
      [&](int slot, const moe::WarpgroupItem& item, int step, const uint8_t* exponents, const auto& sums) {
        constexpr int NT = sizeof(sums[0]) / sizeof(sums[0][0]);
        // A row, 32 values of one token, is 64 bytes; 80 apart writes of a tile fall into different banks.
        constexpr int STRIDE = 40;
        const int all = ptx::opaque(int(threadIdx.x)), group = all / 128, thread = all % 128, warp = thread / 32;
        const int g = thread % 32 / 4, t = thread % 4;
        __half* tile = reinterpret_cast<__half*>(S::staging()) + group * (U::CHUNK * STRIDE);
        const float2* factors = reinterpret_cast<const float2*>(S::factors()) + slot * U::SLAB + 2 * t;
        // Rows g of a tile of weights are gate, rows g + 8 up: values 8 * warp + g of the 32.
        const int own = 16 * (g / 4) + 8 * (g / 2 % 2) + 2 * warp + g % 2;
#pragma unroll
        for (int m = 0; m < U::TILES; ++m) {
          const int columns = (step * U::GROUPS + group) * U::TILES + m;
          const uint8_t* own_exponents = exponents + 64 * m + 16 * warp + g;
          const float gate_lower = moe::fold_lower(own_exponents[0]), up_lower = moe::fold_lower(own_exponents[8]);
#pragma unroll
          for (int from = 0; from < 8 * NT; from += U::CHUNK) {
            ptx::named_barrier<128>(1 + group);
#pragma unroll
            for (int j = from / 8; j < NT && j < (from + U::CHUNK) / 8; ++j)
#pragma unroll
              for (int i = 0; i < 2; ++i) {
                const float2 factor = factors[8 * j + i];
                tile[(8 * j - from + 2 * t + i) * STRIDE + own] = __float2half_rn(
                    moe::folded_activate(sums[m][j][i], sums[m][j][i + 2], gate_lower, up_lower, factor.x, factor.y));
              }
            ptx::named_barrier<128>(1 + group);
#pragma unroll
            for (int i = thread; i < 4 * ::min(8 * NT - from, U::CHUNK); i += 128)
              if (from + i / 4 < item.rows)
                reinterpret_cast<uint4*>(h)[int64_t(item.first + from + i / 4) * (U::I / 8) + columns * 4 + i % 4] =
                    *reinterpret_cast<const uint4*>(tile + i / 4 * STRIDE + i % 4 * 8);
          }
        }
      });
}

}  // namespace kd
