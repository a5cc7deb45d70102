// The second half of the experts with folded weights: the down product of each (row, expert) pair, not yet weighted.
#pragma once

#include "moe/folded_mma.cuh"
#include "ptx/pdl.cuh"

namespace kd {
namespace moe {

// Rows of h, place by place, and by what their sums are lowered.
template <class U>
struct FoldedPlaces {
  const __half* rows;
  const float* lowers;

  __device__ __forceinline__ int enter(const Slab& slab, int i, float*) const { return slab.first + i; }
  __device__ __forceinline__ void bring(const int4& now, float* factors, int lane) const {
#pragma unroll
    for (int i = 0; i < U::SLAB; i += 32)
      if (i + lane < U::SLAB) ptx::copy4(ptx::shared_address(factors + i + lane), lowers + now.x + i + lane, i + lane < now.y);
  }
};

}  // namespace moe

template <class U, class S>
__device__ __forceinline__ void moe_down_folded(Int4G32 w, const uint8_t* exponents, const __half* h, const float* lowers,
                                                const int32_t* plan, const int32_t* slabs, __nv_bfloat16* parts, int E, int R, int L) {
  ptx::grid_dependency_wait();
  ptx::grid_dependency_launch();
  constexpr int STEPS = moe::Folded<U>::STEPS;
  const moe::SlabOrder<STEPS> order{slabs, moe::share_of_cta(), ptx::load4(plan) * STEPS};
  moe::folded_products<U, S>(
      w.blocks, exponents, order, moe::FoldedPlaces<U>{h, lowers}, [&](const moe::FoldedItem& item, const auto& sums) {
        constexpr int NT = sizeof(sums[0]) / sizeof(sums[0][0]);
        // As in FoldedSupply::bring.
        const int thread = ptx::opaque(int(threadIdx.x)), lane = thread % 32, warp = thread / 32, g = lane / 4, t = lane % 4;
        uint4* to = reinterpret_cast<uint4*>(parts) + int64_t(item.first + g) * (U::H / 8) + (item.step * U::WARPS + warp) * 8 + t;
#pragma unroll
        for (int j = 0; j < NT; ++j, to += U::H) {
          const float2 lower = *reinterpret_cast<const float2*>(item.factors + 8 * j + 2 * t);
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            uint32_t word[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
              const float(&sum)[4] = sums[2 * half + i / 2][j];
              const float row = moe::fold_lower(item.exponents[32 * half + 8 * i + g]);
              const __nv_bfloat162 pair = __floats2bfloat162_rn(sum[i % 2 * 2] * row * lower.x, sum[i % 2 * 2 + 1] * row * lower.y);
              word[i] = ptx::transpose(reinterpret_cast<const uint32_t&>(pair));
            }
            const uint4 columns = moe::columns_of(word);
            if (8 * j + g < item.rows) to[4 * half] = columns;
          }
        }
      });
}

}  // namespace kd
