// A CTA copies SPAN vectors of one row, all loads in flight at once.
#pragma once

#include "kd/vec.cuh"
#include "ptx/pdl.cuh"

namespace kd {

template <class U, class S>
__device__ __forceinline__ void tap_columns(const __nv_bfloat16* x, int32_t rank, __nv_bfloat16* y, int M, int W) {
  const int64_t row = blockIdx.x;
  const int begin = blockIdx.y * U::SPAN + threadIdx.x;
  const bool live = rank >= 0 && rank < W / U::C && W % 8 == 0;
  ptx::grid_dependency_wait();
  Bf16x8 value[U::VPT] = {};
#pragma unroll
  for (int i = 0; i < U::VPT; ++i) {
    const int vec = begin + i * U::THREADS;
    if (live && vec < U::VECS) value[i] = load8(x, row * (W / 8) + int64_t(rank) * U::VECS + vec);
  }
  ptx::grid_dependency_launch();
#pragma unroll
  for (int i = 0; i < U::VPT; ++i) {
    const int vec = begin + i * U::THREADS;
    if (vec < U::VECS) store8(y, row * U::VECS + vec, value[i]);
  }
}

}  // namespace kd
