// Rotation of the target's queries: a thread moves one vector of eight values.
#pragma once

#include "kd/rope.cuh"
#include "kd/vec.cuh"
#include "ptx/pdl.cuh"

namespace kd {

template <class U, class S>
__device__ __forceinline__ void query_rope(const __nv_bfloat16* q, const float* rope, const int32_t* positions,
                                           __nv_bfloat16* y, int M, int H, int P) {
  ptx::grid_dependency_wait();
  ptx::grid_dependency_launch();
  const int64_t index = int64_t(blockIdx.x) * U::THREADS + threadIdx.x, head = index / U::OWN;
  if (head >= int64_t(M) * H) return;
  // Which vector of the head; those of the rotated part are the last.
  const int vec = int(index % U::OWN) + U::NVECS + U::RVECS - U::OWN;
  Bf16x8 value = load8(q, head * (U::NVECS + U::RVECS) + vec);
  const int pair = vec - U::NVECS;
  if (pair >= 0) {
    float v[8], angle[8];
    widen8(value, v);
    load_angles<U::R>(rope, ptx::load4(positions + head / H), P, pair, angle);
#pragma unroll
    for (int j = 0; j < 8; j += 2) rotate(v[j], v[j + 1], angle[j], angle[j + 1]);
    value = narrow8(v);
  }
  store8(y, head * ((U::W + U::R) / 8) + U::W / 8 + pair, value);
}

}  // namespace kd
