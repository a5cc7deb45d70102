// Per-head RMS norm and half-split rotation. LANES neighbouring threads own a head: thread l has the values 8l .. 8l + 8 of
// the first half and of the second, so both members of a pair are in one thread.
#pragma once

#include "kd/rope.cuh"
#include "kd/vec.cuh"
#include "ptx/pdl.cuh"

namespace kd {
namespace heads {

struct Pair {
  Bf16x8 low = {}, high = {};
};

template <class U>
__device__ __forceinline__ Pair load_gain(const __nv_bfloat16* gain) {
  const int lane = threadIdx.x % U::LANES;
  return {load8_constant(gain, lane), load8_constant(gain, U::LANES + lane)};
}

// Every thread of the CTA calls this; a thread without a head has zeros.
template <class U>
__device__ __forceinline__ void norm_rotate(Pair& head, const Pair& gain, float eps, const float (&angle)[16]) {
  float a[8], b[8];
  widen8(head.low, a);
  widen8(head.high, b);
  float squares = 0.0f;
#pragma unroll
  for (int i = 0; i < 8; ++i) squares = fmaf(a[i], a[i], fmaf(b[i], b[i], squares));
#pragma unroll
  for (int step = U::LANES / 2; step > 0; step /= 2) squares += __shfl_xor_sync(0xffffffffu, squares, step);
  const float scale = 1.0f / sqrtf(squares * (1.0f / U::D) + eps);
  float g[8], h[8];
  widen8(gain.low, g);
  widen8(gain.high, h);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    a[i] = a[i] * scale * g[i];
    b[i] = b[i] * scale * h[i];
    rotate(a[i], b[i], angle[2 * i], angle[2 * i + 1]);
  }
  head.low = narrow8(a);
  head.high = narrow8(b);
}

// The angles of this thread's eight pairs.
template <class U>
__device__ __forceinline__ void angles(const float* rope, int position, int positions, float (&angle)[16]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float four[8];
    load_angles<U::D>(rope, position, positions, 2 * int(threadIdx.x % U::LANES) + half, four);
#pragma unroll
    for (int i = 0; i < 8; ++i) angle[8 * half + i] = four[i];
  }
}

}  // namespace heads

template <class U, class S>
__device__ __forceinline__ void drafter_heads(const __nv_bfloat16* qkv, const __nv_bfloat16* query_gain,
                                              const __nv_bfloat16* key_gain, float eps, const float* rope,
                                              const int32_t* positions, __nv_bfloat16* q, __nv_bfloat16* own, int M, int P) {
  constexpr int VECS = 2 * U::LANES;  // of a head
  const int64_t row = blockIdx.x;
  const int head = blockIdx.y * U::HEADS + threadIdx.x / U::LANES, lane = threadIdx.x % U::LANES;
  const bool query = head < U::Q;
  const heads::Pair gains = heads::load_gain<U>(query ? query_gain : key_gain);
  ptx::grid_dependency_wait();
  float angle[16];
  heads::angles<U>(rope, ptx::load4(positions + row), P, angle);
  const int64_t from = (row * U::ALL + head) * VECS + lane;
  heads::Pair value;
  if (head < U::ALL) value = {load8(qkv, from), load8(qkv, from + U::LANES)};
  ptx::grid_dependency_launch();
  heads::Pair turned = value;
  heads::norm_rotate<U>(turned, gains, eps, angle);
  if (head >= U::ALL) return;
  if (head < U::Q + U::N) value = turned;
  __nv_bfloat16* to = query ? q : own;
  const int64_t at = (query ? row * U::Q + head : row * 2 * U::N + head - U::Q) * VECS + lane;
  store8(to, at, value.low);
  store8(to, at + U::LANES, value.high);
}

template <class U, class S>
__device__ __forceinline__ void drafter_context(const __nv_bfloat16* kv, const __nv_bfloat16* gain, float eps,
                                                const float* rope, const int32_t* positions, const int32_t* slots,
                                                __nv_bfloat16* cache, int M, int L, int P, int T) {
  constexpr int VECS = 2 * U::LANES;  // of a head
  const int64_t row = blockIdx.x, layer = blockIdx.z;
  const int head = blockIdx.y * U::HEADS + threadIdx.x / U::LANES, lane = threadIdx.x % U::LANES;
  const heads::Pair gains = heads::load_gain<U>(gain + layer * U::D);
  ptx::grid_dependency_wait();
  const int64_t slot = ptx::load4(slots + row);
  const bool live = slot >= 0 && slot < T && head < U::N;
  float angle[16];
  heads::angles<U>(rope, ptx::load4(positions + row), P, angle);
  const int64_t from = ((row * L + layer) * 2 * U::N + head) * VECS + lane;
  const int64_t to = ((layer * T + slot) * 2 * U::N + head) * VECS + lane;
  constexpr int VALUE = U::N * VECS;  // from a key to its value
  heads::Pair key, value;
  if (live) {
    key = {load8(kv, from), load8(kv, from + U::LANES)};
    value = {load8(kv, from + VALUE), load8(kv, from + VALUE + U::LANES)};
  }
  ptx::grid_dependency_launch();
  heads::norm_rotate<U>(key, gains, eps, angle);
  if (!live) return;
  store8(cache, to, key.low);
  store8(cache, to + U::LANES, key.high);
  store8(cache, to + VALUE, value.low);
  store8(cache, to + VALUE + U::LANES, value.high);
}

}  // namespace kd
