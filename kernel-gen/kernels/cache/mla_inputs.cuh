// Norm of the compressed query, and the cache entry of a token: a CTA a row, whose first warp makes the entry.
#pragma once

#include "cache/fp8.cuh"
#include "kd/rope.cuh"
#include "kd/vec.cuh"
#include "ptx/copy.cuh"
#include "ptx/pdl.cuh"

namespace kd {
namespace mla {

// Sum of squares over the vectors of a warp.
template <int N>
__device__ __forceinline__ float squares_of(const Bf16x8 (&vec)[N]) {
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    float v[8];
    widen8(vec[i], v);  // zeros where there is no vector
#pragma unroll
    for (int j = 0; j < 8; ++j) sum = fmaf(v[j], v[j], sum);
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
  return sum;
}

__device__ __forceinline__ Bf16x8 scaled(const Bf16x8& vec, const Bf16x8& gain, float scale) {
  float v[8], g[8];
  widen8(vec, v);
  widen8(gain, g);
#pragma unroll
  for (int j = 0; j < 8; ++j) v[j] = v[j] * scale * g[j];
  return narrow8(v);
}

// The entry of row `row`, by one warp.
template <class U>
__device__ __forceinline__ void entry(const __nv_bfloat16* x, const Bf16x8 (&gain)[U::OWN], float eps, const float* rope,
                                      const int32_t* positions, const int32_t* slots, __nv_bfloat16* cache, int64_t row,
                                      int P, int T) {
  const int lane = threadIdx.x % 32;
  const int64_t from = row * U::VECS + U::QVECS, slot = ptx::load4(slots + row);
  if (slot < 0 || slot >= T) return;  // the whole warp
  Bf16x8 latent[U::OWN] = {};
#pragma unroll
  for (int i = 0; i < U::OWN; ++i)
    if (lane + 32 * i < U::CVECS) latent[i] = load8(x, from + lane + 32 * i);
  const float scale = 1.0f / sqrtf(squares_of(latent) * (1.0f / U::C) + eps);
  if constexpr (U::FP8) {
    float value[U::OWN][8];
    uint32_t most = 0;
#pragma unroll
    for (int i = 0; i < U::OWN; ++i) {
      float g[8];
      widen8(latent[i], value[i]);
      widen8(gain[i], g);
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        value[i][j] = value[i][j] * scale * g[j];
        most = ::max(most, fp8::magnitude(value[i][j]));
      }
    }
    const auto unit = fp8::Scale::of(__reduce_max_sync(0xffffffffu, most));
#pragma unroll
    for (int i = 0; i < U::OWN; ++i)
      if (lane + 32 * i < U::CVECS)
        store8(cache, slot * (U::CVECS + U::RVECS) + lane + 32 * i,
               fp8::decode8(fp8::encode8(value[i], unit.inverse), fp8::factor(unit.value)));
  } else {
#pragma unroll
    for (int i = 0; i < U::OWN; ++i)
      if (lane + 32 * i < U::CVECS)
        store8(cache, slot * (U::CVECS + U::RVECS) + lane + 32 * i, scaled(latent[i], gain[i], scale));
  }
  if (lane >= U::RVECS) return;
  float v[8], angle[8];
  widen8(load8(x, from + U::CVECS + lane), v);
  load_angles<U::R>(rope, ptx::load4(positions + row), P, lane, angle);
#pragma unroll
  for (int j = 0; j < 8; j += 2) rotate(v[j], v[j + 1], angle[j], angle[j + 1]);
  store8(cache, slot * (U::CVECS + U::RVECS) + U::CVECS + lane, narrow8(v));
}

}  // namespace mla

template <class U, class S>
__device__ __forceinline__ void mla_inputs(const __nv_bfloat16* x, const __nv_bfloat16* q_gain, const __nv_bfloat16* kv_gain,
                                           float eps, const float* rope, const int32_t* positions, const int32_t* slots,
                                           __nv_bfloat16* q, __nv_bfloat16* cache, int M, int P, int T) {
  const int64_t row = blockIdx.x;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (warp == 0) {
    Bf16x8 gain[U::OWN] = {};
#pragma unroll
    for (int i = 0; i < U::OWN; ++i)
      if (lane + 32 * i < U::CVECS) gain[i] = load8_constant(kv_gain, lane + 32 * i);
    ptx::grid_dependency_wait();
    ptx::grid_dependency_launch();
    mla::entry<U>(x, gain, eps, rope, positions, slots, cache, row, P, T);
    return;
  }
  constexpr int LANES = 32 * U::WARPS;
  const int own = threadIdx.x - 32;
  Bf16x8 gain[U::VPT] = {}, vec[U::VPT] = {};
#pragma unroll
  for (int i = 0; i < U::VPT; ++i)
    if (own + LANES * i < U::QVECS) gain[i] = load8_constant(q_gain, own + LANES * i);
  ptx::grid_dependency_wait();
#pragma unroll
  for (int i = 0; i < U::VPT; ++i)
    if (own + LANES * i < U::QVECS) vec[i] = load8(x, row * U::VECS + own + LANES * i);
  ptx::grid_dependency_launch();
  const float squares = mla::squares_of(vec);
  if (lane == 0) S::partial()[warp - 1] = squares;
  ptx::named_barrier<LANES>(1);  // of the warps of the query alone
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < U::WARPS; ++i) sum += S::partial()[i];
  const float scale = 1.0f / sqrtf(sum * (1.0f / U::Q) + eps);
#pragma unroll
  for (int i = 0; i < U::VPT; ++i)
    if (own + LANES * i < U::QVECS)
      store8(q, row * U::QVECS + own + LANES * i, mla::scaled(vec[i], gain[i], scale));
}

template <class U, class S>
__device__ __forceinline__ void mla_inputs_fp8(const __nv_bfloat16* x, const __nv_bfloat16* q_gain, const __nv_bfloat16* kv_gain,
                                               float eps, const float* rope, const int32_t* positions, const int32_t* slots,
                                               __nv_bfloat16* q, __nv_bfloat16* cache, int M, int P, int T) {
  mla_inputs<U, S>(x, q_gain, kv_gain, eps, rope, positions, slots, q, cache, M, P, T);
}

}  // namespace kd
