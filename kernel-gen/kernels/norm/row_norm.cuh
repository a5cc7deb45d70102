// The residual add and norm of one row inside the launch that reads it: each CTA makes the whole row for itself.
//
// WARPS warps do what `add_rms_norm` has NORM_WARPS warps for, in rounds: lane l of warp w of those has the vectors 32 w + l and
// 32 (NORM_WARPS + w) + l. Sums are in the same order, so the row has the same bits.
#pragma once

#include "kd/vec.cuh"
#include "ptx/copy.cuh"
#include "ptx/pdl.cuh"

namespace kd {
namespace norm {

// What a thread has of the row: two vectors a round. The gain waits in the place of the normed row, which takes no registers.
template <class U>
struct OwnRow {
  static constexpr int ROUNDS = (U::NORM_WARPS + U::WARPS - 1) / U::WARPS, VECS = 2 * ROUNDS;

  Bf16x8 vec[VECS] = {};

  // Of the warps of `add_rms_norm`, the one that has vector i.
  __device__ __forceinline__ static int warp(int i) { return threadIdx.x / 32 + i / 2 * U::WARPS; }
  __device__ __forceinline__ static int at(int i) { return 32 * (warp(i) + i % 2 * U::NORM_WARPS) + int(threadIdx.x % 32); }
  __device__ __forceinline__ static bool holds(int i) { return warp(i) < U::NORM_WARPS && at(i) < U::H / 8; }

  template <class Load>
  __device__ __forceinline__ static void fill(Bf16x8 (&to)[VECS], Load load) {
#pragma unroll
    for (int i = 0; i < VECS; ++i)
      if (holds(i)) to[i] = load(at(i));
  }

  // Before the wait for the kernel in front, since the gain is a weight: this thread's part of it to `x`, as one group of copies.
  __device__ __forceinline__ static void ask_gain(const __nv_bfloat16* from, __nv_bfloat16* x) {
#pragma unroll
    for (int i = 0; i < VECS; ++i)
      if (holds(i)) ptx::copy16(ptx::shared_address(x + 8 * at(i)), from + 8 * at(i));
    ptx::copy_commit();
  }

  // The row `h` plus the sum of its R parts, which are `stride` vectors apart, rounded. More than two come one after another.
  __device__ __forceinline__ void load(const __nv_bfloat16* h, const __nv_bfloat16* parts, int64_t stride, int R) {
    Bf16x8 first[VECS] = {}, second[VECS] = {};
    fill(vec, [=](int at) { return load8(h, at); });
    fill(first, [=](int at) { return load8(parts, at); });
    if (R > 1) fill(second, [=](int at) { return load8(parts, stride + at); });  // on its way together with the first
#pragma unroll
    for (int i = 0; i < VECS; ++i) {
      float residual[8], sum[8];
      widen8(first[i], sum);
      const auto add = [&](const Bf16x8& part) {
        float term[8];
        widen8(part, term);
#pragma unroll
        for (int j = 0; j < 8; ++j) sum[j] += term[j];
      };
      if (R > 1) add(second[i]);
#pragma unroll 1
      for (int64_t rank = 2; rank < R; ++rank)
        if (holds(i)) add(load8(parts, rank * stride + at(i)));
      widen8(vec[i], residual);
#pragma unroll
      for (int j = 0; j < 8; ++j) residual[j] += sum[j];
      vec[i] = narrow8(residual);
    }
  }

  // Leaves the sums of squares of the warps of `add_rms_norm` in `partial`; a barrier of all WARPS must follow.
  __device__ __forceinline__ void leave_squares(float* partial) const {
    float squares[ROUNDS] = {};
#pragma unroll
    for (int i = 0; i < VECS; ++i) {
      float v[8];
      widen8(vec[i], v);
#pragma unroll
      for (int j = 0; j < 8; ++j) squares[i / 2] = fmaf(v[j], v[j], squares[i / 2]);
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2)
#pragma unroll
      for (int round = 0; round < ROUNDS; ++round) squares[round] += __shfl_xor_sync(0xffffffffu, squares[round], step);
#pragma unroll
    for (int round = 0; round < ROUNDS; ++round)
      if (threadIdx.x % 32 == 0 && warp(2 * round) < U::NORM_WARPS) partial[warp(2 * round)] = squares[round];
  }

  // Behind that barrier, and once the gain is there: the normed row takes its place; `store(vector, residual)` for each vector of this
  // thread.
  template <class Store>
  __device__ __forceinline__ void normalise(const float* partial, float eps, __nv_bfloat16* x, Store store) const {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < U::NORM_WARPS; ++i) sum += partial[i];
    const float scale = 1.0f / sqrtf(sum * (1.0f / U::H) + eps);
#pragma unroll
    for (int i = 0; i < VECS; ++i) {
      if (!holds(i)) continue;
      float v[8], g[8];
      widen8(vec[i], v);
      uint4* place = reinterpret_cast<uint4*>(x) + at(i);
      widen8(from_words(*place), g);
#pragma unroll
      for (int j = 0; j < 8; ++j) v[j] = v[j] * scale * g[j];
      const Bf16x8 normed = narrow8(v);
      *place = make_uint4(normed.word[0], normed.word[1], normed.word[2], normed.word[3]);
      store(at(i), vec[i]);
    }
  }
};

}  // namespace norm
}  // namespace kd
