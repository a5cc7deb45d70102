// SiLU of the gate times up. A thread makes eight columns of one row.
#pragma once

#include "kd/vec.cuh"
#include "ptx/pdl.cuh"

namespace kd {

// The exponential ends at e^88, as that of the CPU operation does: the quotient stays a number. A NaN stays one.
__device__ __forceinline__ float silu_times(float gate, float up) { return gate / (1.0f + expf(fminf(-gate, 88.0f))) * up; }

template <class U, class S>
__device__ __forceinline__ void silu_mul(const __nv_bfloat16* gate_up, __nv_bfloat16* y, int M) {
  const int64_t row = blockIdx.x;
  const int vec = blockIdx.y * U::THREADS + threadIdx.x;
  const bool live = vec < U::VECS;
  ptx::grid_dependency_wait();
  float gate[8], up[8];
  if (live) {
    widen8(load8(gate_up, row * 2 * U::VECS + vec), gate);
    widen8(load8(gate_up, row * 2 * U::VECS + U::VECS + vec), up);
  }
  ptx::grid_dependency_launch();
  if (!live) return;
#pragma unroll
  for (int i = 0; i < 8; ++i) gate[i] = silu_times(gate[i], up[i]);
  store8(y, row * U::VECS + vec, narrow8(gate));
}

}  // namespace kd
