// The first half of the experts with folded weights: silu(gate x) * up x for each (row, expert) pair, in the order of the list of rows.
#pragma once

#include "moe/folded_activate.cuh"
#include "moe/folded_mma.cuh"
#include "ptx/pdl.cuh"

namespace kd {
namespace moe {

// Rows of x by the list, and by what a row's sums are lowered and its h is lifted.
template <class U>
struct FoldedRows {
  const __half* rows;
  const int32_t *list, *lifts, *norms, *bounds;

  __device__ __forceinline__ int enter(const Slab& slab, int i, float* factors) const {
    const int row = ptx::load4(list + slab.first + i);
    factors[i] = power_of_two(127 - ptx::load4(lifts + row));
    factors[U::SLAB + i] = power_of_two(127 + hidden_lift(ptx::load4(norms + row), ptx::load4(bounds + slab.expert)));
    return row;
  }
  __device__ __forceinline__ void bring(const int4&, float*, int) const {}
};

}  // namespace moe

template <class U, class S>
__device__ __forceinline__ void moe_gate_up_folded(Int4G32 w, const uint8_t* exponents, const int32_t* bounds, const __half* x,
                                                   const int32_t* lifts, const int32_t* norms, const int32_t* plan, const int32_t* slabs,
                                                   const int32_t* rows, __half* h, float* lowers, int E, int M, int L, int R) {
  ptx::grid_dependency_wait();
  ptx::grid_dependency_launch();
  constexpr int STEPS = moe::Folded<U>::STEPS;
  const moe::SlabOrder<STEPS> order{slabs, moe::share_of_cta(), ptx::load4(plan) * STEPS};
  moe::folded_products<U, S>(
      w.blocks, exponents, order, moe::FoldedRows<U>{x, rows, lifts, norms, bounds}, [&](const moe::FoldedItem& item, const auto& sums) {
        constexpr int NT = sizeof(sums[0]) / sizeof(sums[0][0]);
        // As in FoldedSupply::bring.
        const int thread = ptx::opaque(int(threadIdx.x)), lane = thread % 32, warp = thread / 32, g = lane / 4, t = lane % 4;
        const int group = item.step * U::WARPS + warp;
#pragma unroll
        for (int j = 0; j < NT; ++j) {
          uint32_t word[4];
          const float2 lower = *reinterpret_cast<const float2*>(item.factors + 8 * j + 2 * t);
          const float2 lift = *reinterpret_cast<const float2*>(item.factors + U::SLAB + 8 * j + 2 * t);
#pragma unroll
          for (int m = 0; m < 4; ++m) {
            const float(&sum)[4] = sums[m][j];
            // Rows g of a tile of weights are gate, rows g + 8 up.
            const float gate = moe::fold_lower(item.exponents[16 * m + g]), up = moe::fold_lower(item.exponents[16 * m + 8 + g]);
            const __half2 pair = __floats2half2_rn(moe::folded_activate(sum[0], sum[2], gate, up, lower.x, lift.x),
                                                   moe::folded_activate(sum[1], sum[3], gate, up, lower.y, lift.y));
            word[m] = ptx::transpose(reinterpret_cast<const uint32_t&>(pair));
          }
          const uint4 columns = moe::columns_of(word);
          if (8 * j + g < item.rows) reinterpret_cast<uint4*>(h)[int64_t(item.first + 8 * j + g) * (U::I / 8) + group * 4 + t] = columns;
        }
        if (group > 0) return;
#pragma unroll
        for (int i = 0; i < U::SLAB; i += 32)
          // 1 over a power of two.
          if (i + lane < item.rows) lowers[item.first + i + lane] = __uint_as_float((254u << 23) - __float_as_uint(item.factors[U::SLAB + i + lane]));
      });
}

}  // namespace kd
