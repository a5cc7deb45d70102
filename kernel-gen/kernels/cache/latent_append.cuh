// Latent norm, rotation of the shared key, and the write into pages or scratch: one warp a row.
#pragma once

#include "kd/rope.cuh"
#include "kd/vec.cuh"
#include "ptx/pdl.cuh"

namespace kd {

template <class U, class S>
__device__ __forceinline__ void latent_append(const __nv_bfloat16* kv, const __nv_bfloat16* gain, float eps,
                                              const float* rope, const int32_t* positions, const int32_t* slots,
                                              __nv_bfloat16* cache, int M, int P, int T) {
  const int64_t row = int64_t(blockIdx.x) * U::ROWS + threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  Bf16x8 gains[U::VPT] = {};
#pragma unroll
  for (int i = 0; i < U::VPT; ++i)
    if (lane + 32 * i < U::CVECS) gains[i] = load8_constant(gain, lane + 32 * i);
  ptx::grid_dependency_wait();
  const int64_t slot = row < M ? ptx::load4(slots + row) : -1;
  const bool live = slot >= 0 && slot < T;
  Bf16x8 latent[U::VPT] = {}, key = {};
  float angle[8];
  if (live) {
#pragma unroll
    for (int i = 0; i < U::VPT; ++i)
      if (lane + 32 * i < U::CVECS) latent[i] = load8(kv, row * U::VECS + lane + 32 * i);
    if (lane < U::RVECS) {
      key = load8(kv, row * U::VECS + U::CVECS + lane);
      load_angles<U::R>(rope, ptx::load4(positions + row), P, lane, angle);
    }
  }
  ptx::grid_dependency_launch();
  if (!live) return;  // the whole warp

  float squares = 0.0f;
#pragma unroll
  for (int i = 0; i < U::VPT; ++i) {
    float v[8];
    widen8(latent[i], v);
#pragma unroll
    for (int j = 0; j < 8; ++j) squares = fmaf(v[j], v[j], squares);
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) squares += __shfl_xor_sync(0xffffffffu, squares, step);
  const float scale = 1.0f / sqrtf(squares * (1.0f / U::C) + eps);
#pragma unroll
  for (int i = 0; i < U::VPT; ++i) {
    if (lane + 32 * i >= U::CVECS) continue;
    float v[8], g[8];
    widen8(latent[i], v);
    widen8(gains[i], g);
#pragma unroll
    for (int j = 0; j < 8; ++j) v[j] = v[j] * scale * g[j];
    store8(cache, slot * U::VECS + lane + 32 * i, narrow8(v));
  }
  if (lane < U::RVECS) {
    float v[8];
    widen8(key, v);
#pragma unroll
    for (int j = 0; j < 8; j += 2) rotate(v[j], v[j + 1], angle[j], angle[j + 1]);
    store8(cache, slot * U::VECS + U::CVECS + lane, narrow8(v));
  }
}

}  // namespace kd
