// Gathers of rows. A CTA copies SPAN vectors of one row; its number is read by every thread, from L1 after the first.
#pragma once

#include "kd/vec.cuh"
#include "ptx/pdl.cuh"

namespace kd {

template <class U, class S>
__device__ __forceinline__ void embed(const __nv_bfloat16* table, const int32_t* ids, int32_t rank, __nv_bfloat16* y,
                                      int V, int M) {
  const int64_t row = blockIdx.x;
  ptx::grid_dependency_wait();
  // A token may have been sampled by the kernel in front.
  const int64_t own = int64_t(ptx::load4(ids + row)) - int64_t(rank) * V;
  const bool held = own >= 0 && own < V;
  Bf16x8 value[U::VPT] = {};
#pragma unroll
  for (int i = 0; i < U::VPT; ++i) {
    const int vec = blockIdx.y * U::SPAN + i * U::THREADS + threadIdx.x;
    if (held && vec < U::VECS) value[i] = load8_constant(table, own * U::VECS + vec);
  }
  ptx::grid_dependency_launch();
#pragma unroll
  for (int i = 0; i < U::VPT; ++i) {
    const int vec = blockIdx.y * U::SPAN + i * U::THREADS + threadIdx.x;
    if (vec < U::VECS) store8(y, row * U::VECS + vec, value[i]);
  }
}

template <class U, class S_>
__device__ __forceinline__ void gather_taps(const __nv_bfloat16* taps, const int32_t* rows, __nv_bfloat16* y, int N, int S,
                                            int K) {
  const int64_t k = blockIdx.x, tap = blockIdx.y;
  ptx::grid_dependency_wait();
  const int64_t row = ptx::load4(rows + k);
  const bool held = row >= 0 && row < S;
  Bf16x8 value[U::VPT] = {};
#pragma unroll
  for (int i = 0; i < U::VPT; ++i) {
    const int vec = blockIdx.z * U::SPAN + i * U::THREADS + threadIdx.x;
    if (held && vec < U::VECS) value[i] = load8(taps, (tap * S + row) * U::VECS + vec);
  }
  ptx::grid_dependency_launch();
#pragma unroll
  for (int i = 0; i < U::VPT; ++i) {
    const int vec = blockIdx.z * U::SPAN + i * U::THREADS + threadIdx.x;
    if (vec < U::VECS) store8(y, (k * N + tap) * U::VECS + vec, value[i]);
  }
}

}  // namespace kd
