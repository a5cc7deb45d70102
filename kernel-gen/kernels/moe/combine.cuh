// The weighted sum of a row's experts, in the order of its choices.
#pragma once

#include "kd/vec.cuh"
#include "moe/weighted.cuh"
#include "ptx/pdl.cuh"

namespace kd {

template <class U, class S>
__device__ __forceinline__ void moe_combine(const float* parts, const float* weights, const int32_t* places,
                                            __nv_bfloat16* y, int R, int M) {
  ptx::grid_dependency_wait();
  ptx::grid_dependency_launch();
  const int64_t row = blockIdx.x;
  const int vec = blockIdx.y * U::THREADS + threadIdx.x;
  if (8 * vec >= U::H) return;
  float low[4] = {}, high[4] = {};
#pragma unroll
  for (int slot = 0; slot < U::T; ++slot) {
    const int place = ptx::load4(places + row * U::T + slot);
    if (place < 0) continue;
    const float weight = ptx::load4f(weights + row * U::T + slot);
    const float* part = parts + int64_t(place) * U::H + 8 * vec;
    moe::add_weighted(low, weight, ptx::load16(part));
    moe::add_weighted(high, weight, ptx::load16(part + 4));
  }
  store8(y, row * (U::H / 8) + vec, narrow8({low[0], low[1], low[2], low[3], high[0], high[1], high[2], high[3]}));
}

}  // namespace kd
