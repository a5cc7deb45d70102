// What the eight warps of tree_mla do with a step of 16 keys.
#pragma once

#include "attn/mla_work.cuh"
#include "ptx/ldmatrix.cuh"
#include "ptx/math.cuh"
#include "ptx/mma.cuh"

namespace kd {
namespace mla {

template <class U, class S>
struct Multiplier {
  // Scores: four warps take a quarter each of the latent; the two halves of the CTA share rows, or keys where 16 are all.
  static constexpr int TILES = max(1, U::MT / 2), HALVES = U::MT == 1 ? 1 : 2;
  static constexpr int PAIRS = U::C / 128;  // of eight columns, mixed by a warp
  // A row's weights are relative to the greatest score at the last step that rose by more than this, in powers of two: sums
  // are scaled seldom, and stay far from overflow.
  static constexpr float SLACK = 8.0f;

  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int quarter = warp % 4, half = warp / 4;
  float factor;
  uint32_t query[TILES][U::QSTEPS][4];
  float score_[TILES][HALVES][4];
  float sum[U::MT][2 * PAIRS][4];
  float base, total;  // of row 8 * warp + g

  __device__ __forceinline__ int tile(int i) const { return U::MT == 1 ? 0 : TILES * half + i; }
  __device__ __forceinline__ static bool serves(const Step& step, int tile) {
    return step.low < 16 * tile + 16 && step.high > 16 * tile;
  }

  // Where step k of this warp's quarter lies, of rows whose latents and rotated keys lie at two places.
  __device__ __forceinline__ uint32_t place_of(int k, uint32_t latents, uint32_t keys) const {
    constexpr int LAST = U::CSTEPS - 3 * U::QSTEPS;  // steps of the last quarter before the keys
    const int at = quarter * U::QSTEPS + k;
    if constexpr (LAST >= 0) {
      const uint32_t latent = latents + 32 * quarter * U::QSTEPS;
      return (k < LAST ? latent : quarter == 3 ? keys - 32 * LAST : latent) + 32 * k;
    }
    return at < U::CSTEPS ? latents + 32 * at : keys + 32 * (at - U::CSTEPS);
  }

  __device__ __forceinline__ void take_queries() {
#pragma unroll
    for (int i = 0; i < TILES; ++i) {
      const uint32_t latents = Loader<U, S>::latents(tile(i)) + lane % 16 * U::LATENT + lane / 16 * 16;
      const uint32_t keys = Loader<U, S>::query_keys(tile(i)) + lane % 16 * U::KEY + lane / 16 * 16;
#pragma unroll
      for (int k = 0; k < U::QSTEPS; ++k)
        if (U::STEPS % 4 == 0 || quarter * U::QSTEPS + k < U::STEPS)
          ptx::ldmatrix4(query[i][k], place_of(k, latents, keys));
    }
#pragma unroll
    for (int m = 0; m < U::MT; ++m)
#pragma unroll
      for (int n = 0; n < 2 * PAIRS; ++n)
#pragma unroll
        for (int c = 0; c < 4; ++c) sum[m][n][c] = 0.0f;
    base = -INFINITY;
    total = 0.0f;
  }

  // This warp's part of the scores, over the keys in ring places `slot` and `key_slot`.
  __device__ __forceinline__ void score(int slot, int key_slot) {
    const int key = U::MT == 1 ? 8 * half + lane % 8 : lane % 8 + lane / 16 * 8;
    const uint32_t latents = Loader<U, S>::latents(slot) + key * U::LATENT + lane / 8 % 2 * 16;
    const uint32_t keys = Loader<U, S>::keys(key_slot) + key * U::KEY + lane / 8 % 2 * 16;
#pragma unroll
    for (int i = 0; i < TILES; ++i)
#pragma unroll
      for (int n = 0; n < HALVES; ++n)
#pragma unroll
        for (int c = 0; c < 4; ++c) score_[i][n][c] = 0.0f;
    // Loaded two steps ahead.
    uint32_t b[3][2 * HALVES];
    const auto load = [&](int k) {
      if (k >= U::QSTEPS || (U::STEPS % 4 != 0 && quarter * U::QSTEPS + k >= U::STEPS)) return;
      if constexpr (HALVES == 2) ptx::ldmatrix4(b[k % 3], place_of(k, latents, keys));
      if constexpr (HALVES == 1) ptx::ldmatrix2(b[k % 3], place_of(k, latents, keys));
    };
    load(0);
    load(1);
#pragma unroll
    for (int k = 0; k < U::QSTEPS; ++k) {
      load(k + 2);
      if (U::STEPS % 4 != 0 && quarter * U::QSTEPS + k >= U::STEPS) continue;
#pragma unroll
      for (int n = 0; n < HALVES; ++n)
#pragma unroll
        for (int i = 0; i < TILES; ++i)
          ptx::mma_16816_bf16(score_[i][n], query[i][k][0], query[i][k][1], query[i][k][2], query[i][k][3],
                              b[k % 3][2 * n], b[k % 3][2 * n + 1]);
    }
  }

  // Where this lane finds four keys' scores of the eight rows that warp `eight` finishes, from quarter `from`.
  __device__ __forceinline__ float* place(int from, int eight) const {
    return S::scores() + (from * 2 * U::MT + eight) * 128 + lane * 4;
  }

  // Hands this warp's part to the warps that finish it.
  __device__ __forceinline__ void share() const {
#pragma unroll
    for (int i = 0; i < TILES; ++i)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float* to = place(quarter, 2 * tile(i) + r);
        if constexpr (HALVES == 2)
          *reinterpret_cast<float4*>(to) =
              float4{score_[i][0][2 * r], score_[i][0][2 * r + 1], score_[i][1][2 * r], score_[i][1][2 * r + 1]};
        else
          *reinterpret_cast<float2*>(to + 2 * half) = float2{score_[i][0][2 * r], score_[i][0][2 * r + 1]};
      }
  }

  // Scores of eight rows to weights. ALL: every row is served and sees every key.
  template <bool ALL>
  __device__ __forceinline__ void weigh(const Step& step) {
    if (2 * U::MT < 8 && warp >= 2 * U::MT) return;
    const int row = 8 * warp + g;
    const bool served = ALL || (row >= step.low && row < step.high);
    float4 part[4];
#pragma unroll
    for (int from = 0; from < 4; ++from) part[from] = *reinterpret_cast<const float4*>(place(from, warp));
    float s[4] = {((part[0].x + part[1].x) + part[2].x) + part[3].x, ((part[0].y + part[1].y) + part[2].y) + part[3].y,
                  ((part[0].z + part[1].z) + part[2].z) + part[3].z, ((part[0].w + part[1].w) + part[2].w) + part[3].w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      s[i] *= factor;
      if (ALL) continue;
      if (i / 2 * 8 + 2 * t + i % 2 >= step.keys) s[i] = -INFINITY;
      if (step.keys < 0) s[i] = __int_as_float(0x7fffffff);
    }
    float best = fmaxf(fmaxf(s[0], s[1]), fmaxf(s[2], s[3]));
    best = fmaxf(best, __shfl_xor_sync(0xffffffffu, best, 1));
    best = fmaxf(best, __shfl_xor_sync(0xffffffffu, best, 2));
    const bool rise = served && best > base + SLACK;
    const float keep = rise ? ptx::exp2_fast(base - best) : 1.0f;
    if (rise) base = best;
    uint32_t weights[2];
    float added[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      __nv_bfloat162 pair = __floats2bfloat162_rn(ptx::exp2_fast(s[2 * i] - base), ptx::exp2_fast(s[2 * i + 1] - base));
      if (!served) pair.x = pair.y = __float2bfloat16_rn(0.0f);
      weights[i] = uint32_t(__bfloat16_as_ushort(pair.y)) << 16 | __bfloat16_as_ushort(pair.x);
      // The sum is that of the rounded weights, so that equal values mix to themselves.
      added[i] = __uint_as_float(weights[i] << 16) + __uint_as_float(weights[i] & 0xffff0000u);
    }
    total = total * keep + (added[0] + added[1]);
    uint32_t* to = reinterpret_cast<uint32_t*>(S::weights() + row * KEYS) + t;
    const int swap = g / 4 * 4;
    to[swap] = weights[0];
    to[4 - swap] = weights[1];
    const bool changed = __any_sync(0xffffffffu, keep != 1.0f);
    if (lane == 0) S::changed()[warp] = changed;
    if (changed && t == 0) S::keep()[row] = keep;
  }

  // Scales the sums of 16-row tile `m` where a row's base rose.
  __device__ __forceinline__ void scale(int m) {
    const uint8_t* changed = S::changed() + 2 * m;
    const float* keep = S::keep() + 16 * m + g;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (!changed[r]) continue;
      const float by = keep[8 * r];
#pragma unroll
      for (int n = 0; n < 2 * PAIRS; ++n) sum[m][n][2 * r] *= by, sum[m][n][2 * r + 1] *= by;
    }
  }

  __device__ __forceinline__ void scale_all() {
    bool changed = false;
    if constexpr (U::MT == 4) {
      const uint2 flags = *reinterpret_cast<const uint2*>(S::changed());
      changed = (flags.x | flags.y) != 0;
    } else {
      changed = true;
    }
    if (changed)
#pragma unroll
      for (int m = 0; m < U::MT; ++m) scale(m);
  }

  __device__ __forceinline__ void take_values(int slot, uint32_t (&values)[PAIRS][4]) const {
    const uint32_t latents = Loader<U, S>::latents(slot) + (lane % 8 + lane / 8 % 2 * 8) * U::LATENT + lane / 16 * 16 +
                             warp * (U::C / 4);
#pragma unroll
    for (int n = 0; n < PAIRS; ++n) ptx::ldmatrix4_transposed(values[n], latents + 32 * n);
  }

  __device__ __forceinline__ void take_weights(int m, uint32_t (&a)[4]) const {
    const int row = lane % 16;
    ptx::ldmatrix4(a, ptx::shared_address(S::weights() + 16 * m * KEYS) + row * 2 * KEYS +
                          (lane / 16 ^ row / 4 % 2) * 16);
  }

  // Weights times latents for the 16-row tile `m`.
  __device__ __forceinline__ void mix(int m, const uint32_t (&a)[4], const uint32_t (&values)[PAIRS][4]) {
#pragma unroll
    for (int n = 0; n < PAIRS; ++n) {
      ptx::mma_16816_bf16(sum[m][2 * n], a[0], a[1], a[2], a[3], values[n][0], values[n][1]);
      ptx::mma_16816_bf16(sum[m][2 * n + 1], a[0], a[1], a[2], a[3], values[n][2], values[n][3]);
    }
  }

  __device__ __forceinline__ void mix_all(int slot) {
    uint32_t values[PAIRS][4], a[2][4];
    take_values(slot, values);
    take_weights(0, a[0]);
#pragma unroll
    for (int m = 0; m < U::MT; ++m) {
      if (m + 1 < U::MT) take_weights(m + 1, a[(m + 1) % 2]);
      mix(m, a[m % 2], values);
    }
  }

  // Partial results: the mix that is not yet divided, the score (times log2 e) that weights are relative to, and their sum.
  __device__ __forceinline__ void store(float* part_o, float* part_ml, int Z) {
    const int64_t first = work_of<S>().part;
    const int rows = work_of<S>().rows;
    total += __shfl_xor_sync(0xffffffffu, total, 1);
    total += __shfl_xor_sync(0xffffffffu, total, 2);
    const int row = 8 * warp + g;
    if (warp < 2 * U::MT && t == 0 && row < rows && first + row < Z)
      *reinterpret_cast<float2*>(part_ml + (first + row) * 2) = float2{base, total};
    const int64_t room = Z - first;
    float* to = part_o + (first + g) * U::C + warp * (U::C / 8) + 2 * t;
#pragma unroll
    for (int m = 0; m < U::MT; ++m)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int row = 16 * m + 8 * r + g;
        if (row >= rows || row >= room) continue;
#pragma unroll
        for (int n = 0; n < 2 * PAIRS; ++n)
          *reinterpret_cast<float2*>(to + (16 * m + 8 * r) * U::C + 8 * n) =
              float2{sum[m][n][2 * r], sum[m][n][2 * r + 1]};
      }
  }
};

}  // namespace mla
}  // namespace kd
