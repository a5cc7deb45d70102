// The second half of the experts: the down product of each (row, expert) pair, not yet weighted.
#pragma once

#include "moe/wide.cuh"
#include "ptx/pdl.cuh"

namespace kd {

template <class U, class S>
__device__ __forceinline__ void moe_down(Int4G32 w, const __nv_bfloat16* h, int32_t* plan,
                                         const int32_t* entries, float* parts, int E, int R) {
  const int g = threadIdx.x % 32 / 4;
  moe::all_products<U, S>(
      w.blocks, plan, 1, entries, h, [](int place) { return place; },
      [&](int unit, int m, int place, int valid, const float(&sum)[4]) {
        float* to = parts + int64_t(place) * U::H + unit * 32 + m * 16 + g;
        if (valid > 0) to[0] = sum[0] * INT4_LOWER, to[8] = sum[2] * INT4_LOWER;
        if (valid > 1) to[U::H] = sum[1] * INT4_LOWER, to[U::H + 8] = sum[3] * INT4_LOWER;
      },
      [] {
        ptx::grid_dependency_wait();
        ptx::grid_dependency_launch();
      });
}

}  // namespace kd
