// The weighted sum of a row's experts, in the order of its choices.
#pragma once

#include "kd/vec.cuh"
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
  float sum[8] = {};
#pragma unroll
  for (int slot = 0; slot < U::T; ++slot) {
    const int place = ptx::load4(places + row * U::T + slot);
    if (place < 0) continue;
    const float weight = ptx::load4f(weights + row * U::T + slot);
    const float* part = parts + int64_t(place) * U::H + 8 * vec;
    const uint4 low = ptx::load16(part), high = ptx::load16(part + 4);
    const uint32_t bits[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
    for (int i = 0; i < 8; ++i) sum[i] += weight * __uint_as_float(bits[i]);
  }
  store8(y, row * (U::H / 8) + vec, narrow8(sum));
}

}  // namespace kd
