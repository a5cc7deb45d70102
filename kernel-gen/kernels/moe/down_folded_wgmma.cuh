// The second half of the experts with folded scales: the down product of each (row, expert) pair, not yet weighted, rounded to bf16.
#pragma once

#include "kd/int4.cuh"
#include "moe/folded_wgmma.cuh"
#include "ptx/transposed.cuh"

namespace kd {
namespace moe {

__device__ __forceinline__ uint32_t bf16_pair(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return reinterpret_cast<const uint32_t&>(pair);
}

}  // namespace moe

template <class U, class S>
__device__ __forceinline__ void moe_down_folded_wgmma(Int4G32 w, const uint8_t* exponents, const __half* h, const float* lowers,
                                                      int32_t* plan, const int32_t* slabs, __nv_bfloat16* parts, int E, int R, int L) {
  ptx::grid_dependency_wait();
  ptx::grid_dependency_launch();
  moe::folded_warpgroup_products<U, S>(
      w.blocks, exponents, h, slabs, ptx::load4(plan), plan + 2,
      [&](const moe::WarpgroupItem&, int place) {
        return moe::WarpgroupRow{place * U::K, make_float2(ptx::load4f(lowers + place), 0)};
      },
      [&](int slot, const moe::WarpgroupItem& item, int step, const uint8_t* exponents, const auto& sums) {
        constexpr int NT = sizeof(sums[0]) / sizeof(sums[0][0]);
        // A row is what the warpgroup has of one token; 16 bytes more, and rows of a tile fall into different banks.
        constexpr int BYTES = 128 * U::TILES, STRIDE = BYTES + 16;
        const int all = ptx::opaque(int(threadIdx.x)), group = all / 128, thread = all % 128, warp = thread / 32;
        const int lane = thread % 32, g = lane / 4, t = lane % 4;
        const uint32_t tile = ptx::shared_address(S::staging()) + group * (U::CHUNK * STRIDE);
        const float2* factors = reinterpret_cast<const float2*>(S::factors()) + slot * U::SLAB + 2 * t;
        uint4* to_rows = reinterpret_cast<uint4*>(parts) + (step * U::GROUPS + group) * (8 * U::TILES);
        float low[U::TILES], high[U::TILES];
#pragma unroll
        for (int m = 0; m < U::TILES; ++m)
          low[m] = moe::fold_lower(exponents[64 * m + 16 * warp + g]), high[m] = moe::fold_lower(exponents[64 * m + 16 * warp + g + 8]);
        const uint32_t to = tile + lane % 8 * STRIDE + lane / 8 % 2 * 16 + 32 * warp;
#pragma unroll
        for (int from = 0; from < 8 * NT; from += U::CHUNK) {
          ptx::named_barrier<128>(1 + group);
#pragma unroll
          for (int j = from / 8; j < NT && j < (from + U::CHUNK) / 8; ++j) {
            const float first = factors[8 * j].x, second = factors[8 * j + 1].x;
#pragma unroll
            for (int m = 0; m < U::TILES; ++m) {
              const float(&sum)[4] = sums[m][j];
              ptx::store_columns(to + (8 * j - from) * STRIDE + 128 * m, moe::bf16_pair(sum[0] * low[m] * first, sum[1] * low[m] * second),
                                 moe::bf16_pair(sum[2] * high[m] * first, sum[3] * high[m] * second));
            }
          }
          ptx::named_barrier<128>(1 + group);
          constexpr int VECS = BYTES / 16;
#pragma unroll
          for (int i = thread; i < VECS * ::min(8 * NT - from, U::CHUNK); i += 128)
            if (from + i / VECS < item.rows)
              to_rows[int64_t(item.first + from + i / VECS) * (U::H / 8) + i % VECS] =
                  ptx::load_shared16(S::staging() + group * (U::CHUNK * STRIDE) + i / VECS * STRIDE + i % VECS * 16);
        }
      });
}

}  // namespace kd
