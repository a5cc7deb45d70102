// Row-wise RMS norm, with and without a residual add in front.
//
// WARPS warps own a row and a CTA holds ROWS of them. Each thread keeps VPT 16-byte vectors of its row in registers
// between the sum of squares and the scaling, so every element is read once and written once. The order of the sum
// depends on H and the variant only: a row's bits do not depend on M or on its neighbours.
#pragma once

#include "kd/vec.cuh"
#include "ptx/pdl.cuh"

namespace kd {
namespace norm {

template <class U>
struct Place {
  // Threads that share a row.
  static constexpr int LANES = 32 * U::WARPS;
  // Every thread has VPT vectors: no bounds check inside a row.
  static constexpr bool EXACT = U::VECS == LANES * U::VPT;

  int64_t row = int64_t(blockIdx.x) * U::ROWS + threadIdx.x / LANES;
  int lane = threadIdx.x % LANES;

  __device__ __forceinline__ int vec(int i) const { return lane + i * LANES; }
  __device__ __forceinline__ bool holds(int i) const { return EXACT || vec(i) < U::VECS; }
};

// Sum of `value` over the threads of a row, the same bits in each of them. Called by every thread of the CTA.
template <class U, class S>
__device__ __forceinline__ float row_sum(float value) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(0xffffffffu, value, step);
  if constexpr (U::WARPS == 1) return value;
  float* partial = S::partial();
  const int warp = threadIdx.x / 32;
  if (threadIdx.x % 32 == 0) partial[warp] = value;
  __syncthreads();
  const float* own = partial + warp / U::WARPS * U::WARPS;
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < U::WARPS; ++i) sum += own[i];
  return sum;
}

template <class U>
struct Row {
  Bf16x8 vec[U::VPT] = {};
};

// The gain is a weight: it is read before the wait for the kernel in front.
template <class U>
__device__ __forceinline__ Row<U> load_gain(const Place<U>& at, const __nv_bfloat16* gain) {
  Row<U> row;
#pragma unroll
  for (int i = 0; i < U::VPT; ++i)
    if (at.holds(i)) row.vec[i] = load8_constant(gain, at.vec(i));
  return row;
}

template <class U, class S>
__device__ __forceinline__ void normalise(const Place<U>& at, bool live, const Row<U>& x, const Row<U>& gain, float eps,
                                          __nv_bfloat16* y) {
  float squares = 0.0f;
#pragma unroll
  for (int i = 0; i < U::VPT; ++i) {
    float v[8];
    widen8(x.vec[i], v);  // zeros where the row has no vector
#pragma unroll
    for (int j = 0; j < 8; ++j) squares = fmaf(v[j], v[j], squares);
  }
  const float scale = 1.0f / sqrtf(row_sum<U, S>(squares) * (1.0f / U::H) + eps);
#pragma unroll
  for (int i = 0; i < U::VPT; ++i) {
    if (!live || !at.holds(i)) continue;
    float v[8], g[8];
    widen8(x.vec[i], v);
    widen8(gain.vec[i], g);
#pragma unroll
    for (int j = 0; j < 8; ++j) v[j] = v[j] * scale * g[j];
    store8(y, at.row * U::VECS + at.vec(i), narrow8(v));
  }
}

}  // namespace norm

// y[M, H] = rms_norm(x[M, H]) * gain[H]
template <class U, class S>
__device__ __forceinline__ void rms_norm(const __nv_bfloat16* x, const __nv_bfloat16* gain, float eps, __nv_bfloat16* y,
                                         int M) {
  const norm::Place<U> at;
  const bool live = at.row < M;
  const norm::Row<U> gains = norm::load_gain<U>(at, gain);
  norm::Row<U> row;
  ptx::grid_dependency_wait();
#pragma unroll
  for (int i = 0; i < U::VPT; ++i)
    if (live && at.holds(i)) row.vec[i] = load8(x, at.row * U::VECS + at.vec(i));
  ptx::grid_dependency_launch();
  norm::normalise<U, S>(at, live, row, gains, eps, y);
}

// h[M, H] += sum over r of parts[R, M, H], rounded to bf16; y[M, H] = rms_norm(h) * gain[H]
template <class U, class S>
__device__ __forceinline__ void add_rms_norm(__nv_bfloat16* h, const __nv_bfloat16* parts, const __nv_bfloat16* gain,
                                             float eps, int32_t early, __nv_bfloat16* tap, __nv_bfloat16* y, int M, int R, int T) {
  const norm::Place<U> at;
  const bool live = at.row < M;
  const norm::Row<U> gains = norm::load_gain<U>(at, gain);
  norm::Row<U> row, part;
  float sum[U::VPT][8];
  if (early) ptx::grid_dependency_launch();
  ptx::grid_dependency_wait();
#pragma unroll
  for (int i = 0; i < U::VPT; ++i) {
    if (!live || !at.holds(i)) continue;
    row.vec[i] = load8(h, at.row * U::VECS + at.vec(i));
    part.vec[i] = load8(parts, at.row * U::VECS + at.vec(i));
  }
#pragma unroll
  for (int i = 0; i < U::VPT; ++i) widen8(part.vec[i], sum[i]);
#pragma unroll 4
  for (int64_t rank = 1; rank < R; ++rank) {
#pragma unroll
    for (int i = 0; i < U::VPT; ++i) {
      if (!live || !at.holds(i)) continue;
      float term[8];
      widen8(load8(parts, (rank * M + at.row) * U::VECS + at.vec(i)), term);
#pragma unroll
      for (int j = 0; j < 8; ++j) sum[i][j] += term[j];
    }
  }
  ptx::grid_dependency_launch();
#pragma unroll
  for (int i = 0; i < U::VPT; ++i) {
    if (!live || !at.holds(i)) continue;
    float residual[8];
    widen8(row.vec[i], residual);
#pragma unroll
    for (int j = 0; j < 8; ++j) residual[j] += sum[i][j];
    row.vec[i] = narrow8(residual);
    store8(h, at.row * U::VECS + at.vec(i), row.vec[i]);
    if (at.row < T) store8(tap, at.row * U::VECS + at.vec(i), row.vec[i]);
  }
  norm::normalise<U, S>(at, live, row, gains, eps, y);
}

}  // namespace kd
