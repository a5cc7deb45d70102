// The first half of the experts: silu(gate x) * up x for each (row, expert) pair, in the order of the list of rows.
#pragma once

#include "moe/activate.cuh"
#include "moe/wide.cuh"
#include "ptx/pdl.cuh"

namespace kd {

template <class U, class S>
__device__ __forceinline__ void moe_gate_up(Int4G32 w, const __nv_bfloat16* x, int32_t* plan,
                                            const int32_t* entries, const int32_t* rows, __nv_bfloat16* h, int E, int M,
                                            int R) {
  ptx::grid_dependency_wait();
  ptx::grid_dependency_launch();
  const int g = threadIdx.x % 32 / 4;
  moe::all_products<U, S>(
      w.blocks, plan, 0, entries, x, [&](int place) { return ptx::load4(rows + place); },
      [&](int unit, int m, int place, int valid, const float(&sum)[4]) {
#pragma unroll
        for (int i = 0; i < 2; ++i)
          // Rows g of a tile are gate, rows g + 8 up.
          if (i < valid) h[int64_t(place + i) * U::I + unit * 16 + m * 8 + g] = moe::activate(sum[i], sum[i + 2], g);
      },
      [] {});
}

}  // namespace kd
