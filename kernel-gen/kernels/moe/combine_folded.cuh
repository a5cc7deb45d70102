// The weighted sum of a row's experts from parts in bf16, in the order of its choices.
#pragma once

#include "kd/vec.cuh"
#include "ptx/pdl.cuh"

namespace kd {

template <class U, class S>
__device__ __forceinline__ void moe_combine_folded(const __nv_bfloat16* parts, const float* weights, const int32_t* places,
                                                   __nv_bfloat16* y, int R, int M) {
  ptx::grid_dependency_wait();
  ptx::grid_dependency_launch();
  const int64_t row = blockIdx.x;
  const int vec = blockIdx.y * U::THREADS + threadIdx.x;
  if (8 * vec >= U::H) return;
  int place[U::T];
  float weight[U::T];
#pragma unroll
  for (int slot = 0; slot < U::T; ++slot) {
    place[slot] = ptx::load4(places + row * U::T + slot);
    weight[slot] = ptx::load4f(weights + row * U::T + slot);
  }
  // All on their way before the first is used.
  Bf16x8 part[U::T];
#pragma unroll
  for (int slot = 0; slot < U::T; ++slot)
    if (place[slot] >= 0) part[slot] = load8(parts, int64_t(place[slot]) * (U::H / 8) + vec);
  float sum[8] = {};
#pragma unroll
  for (int slot = 0; slot < U::T; ++slot) {
    if (place[slot] < 0) continue;
    float value[8];
    widen8(part[slot], value);
#pragma unroll
    for (int i = 0; i < 8; ++i) sum[i] = fmaf(weight[slot], value[i], sum[i]);
  }
  store8(y, row * (U::H / 8) + vec, narrow8(sum));
}

}  // namespace kd
