// What the eight warps of tree_mla do with two steps of 16 keys for a tile of 8 or 16 rows, which are the n8 side of the
// products: keys and latents are the m16 side, so that eight heads of one node waste nothing.
#pragma once

#include "attn/mla_softmax.cuh"
#include "ptx/ldmatrix.cuh"
#include "ptx/mma.cuh"

namespace kd {
namespace mla {

// Scores: a warp takes one of the steps and a quarter of the latent. Softmax: every warp does all rows, and so has the weights
// in the layout in which it mixes an eighth of the columns.
template <class U, class S>
struct Narrow {
  static constexpr int COLUMNS = U::C / 128;  // of 16, mixed by a warp
  static constexpr int STRIDE = KEYS + 4;     // of a row of scores
  using Feed = mla::Feed<U, S>;

  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int quarter = warp % 4, own = warp / 4;
  const float* factor;  // on scores: in shared memory, since registers are scarce
  uint32_t query[U::NT][U::QSTEPS][2];
  float sum[U::NT][COLUMNS][4];
  Softmax softmax[U::NT];  // of rows 8 * n + g

  __device__ __forceinline__ bool has(int k) const {
    return k < U::QSTEPS && (U::STEPS % 4 == 0 || quarter * U::QSTEPS + k < U::STEPS);
  }

  __device__ __forceinline__ void take_queries(int slot) {
#pragma unroll
    for (int n = 0; n < U::NT; ++n) {
      const uint32_t from = Feed::at(slot) + (8 * n + lane % 8) * U::KEY + lane / 8 % 2 * 16 + 32 * quarter * U::QSTEPS;
#pragma unroll
      for (int k = 0; k < U::QSTEPS; ++k)
        if (has(k)) ptx::ldmatrix2(query[n][k], from + 32 * k);
#pragma unroll
      for (int m = 0; m < COLUMNS; ++m)
#pragma unroll
        for (int c = 0; c < 4; ++c) sum[n][m][c] = 0.0f;
      softmax[n].clear();
    }
  }

  // Scores of step `step` of the two and eight rows from quarter `from`.
  __device__ __forceinline__ static float* place(int step, int from, int eight) {
    return S::scores() + ((step * 4 + from) * U::NT + eight) * (8 * STRIDE);
  }

  // This warp's part of the scores over the keys in ring place `slot`.
  __device__ __forceinline__ void score(int slot) const {
    const uint32_t from = Feed::at(slot) + lane % 16 * U::KEY + lane / 16 * 16 + 32 * quarter * U::QSTEPS;
    float part[U::NT][4] = {};
    uint32_t a[U::QSTEPS][4];
#pragma unroll
    for (int k = 0; k < U::QSTEPS; ++k)
      if (has(k)) ptx::ldmatrix4(a[k], from + 32 * k);
#pragma unroll
    for (int k = 0; k < U::QSTEPS; ++k) {
      if (!has(k)) continue;
#pragma unroll
      for (int n = 0; n < U::NT; ++n)
        ptx::mma_16816_bf16(part[n], a[k][0], a[k][1], a[k][2], a[k][3], query[n][k][0], query[n][k][1]);
    }
#pragma unroll
    for (int n = 0; n < U::NT; ++n)
#pragma unroll
      for (int c = 0; c < 4; ++c) place(own, quarter, n)[(2 * t + c % 2) * STRIDE + g + c / 2 * 8] = part[n][c];
  }

  // Scores of step `number` of the two to weights, and these times the latents in ring place `slot`.
  template <bool ALL>
  __device__ __forceinline__ void mix(const Step& step, int number, int slot) {
    const uint32_t latents =
        Feed::at(slot) + (lane % 8 + lane / 16 * 8) * U::KEY + lane / 8 % 2 * 16 + warp * (U::C / 4);
    uint32_t values[COLUMNS][4];
#pragma unroll
    for (int m = 0; m < COLUMNS; ++m) ptx::ldmatrix4_transposed(values[m], latents + 32 * m);
    mix_tile<ALL, 0>(step, number, values);
    if constexpr (U::NT > 1) mix_tile<ALL, 1>(step, number, values);
  }
  template <bool ALL, int n>
  __device__ __forceinline__ void mix_tile(const Step& step, int number, const uint32_t (&values)[COLUMNS][4]) {
    float2 part[4][2];
#pragma unroll
    for (int from = 0; from < 4; ++from)
#pragma unroll
      for (int i = 0; i < 2; ++i)
        part[from][i] = *reinterpret_cast<const float2*>(place(number, from, n) + g * STRIDE + 2 * t + 8 * i);
    float s[4];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      s[2 * i] = ((part[0][i].x + part[1][i].x) + part[2][i].x) + part[3][i].x;
      s[2 * i + 1] = ((part[0][i].y + part[1][i].y) + part[2][i].y) + part[3][i].y;
    }
    const int row = 8 * n + g;
    float keep;
    bool changed;
    const uint2 weights =
        softmax[n].template weigh<ALL>(s, *factor, step, row >= step.low && row < step.high, keep, changed);
    if (changed) {
      // This lane's sums are those of rows 2t and 2t + 1.
      const float even = __shfl_sync(0xffffffffu, keep, 8 * t), odd = __shfl_sync(0xffffffffu, keep, 8 * t + 4);
#pragma unroll
      for (int m = 0; m < COLUMNS; ++m) {
        sum[n][m][0] *= even, sum[n][m][1] *= odd;
        sum[n][m][2] *= even, sum[n][m][3] *= odd;
      }
    }
#pragma unroll
    for (int m = 0; m < COLUMNS; ++m)
      ptx::mma_16816_bf16(sum[n][m], values[m][0], values[m][1], values[m][2], values[m][3], weights.x, weights.y);
  }

  // Partial results, as those of wide tiles.
  __device__ __forceinline__ void store(const Work& work, float* part_o, float* part_ml, int Z) const {
    const int64_t first = work.part, room = ::min(int64_t(work.rows), Z - work.part);
#pragma unroll
    for (int n = 0; n < U::NT; ++n) {
      const float total = softmax[n].all();
      if (warp == n && t == 0 && 8 * n + g < room)
        *reinterpret_cast<float2*>(part_ml + (first + 8 * n + g) * 2) = float2{softmax[n].base, total};
    }
#pragma unroll
    for (int n = 0; n < U::NT; ++n)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int row = 8 * n + 2 * t + r;
        if (row >= room) continue;
        float* to = part_o + (first + row) * U::C + warp * (U::C / 8) + g;
#pragma unroll
        for (int m = 0; m < COLUMNS; ++m) to[16 * m] = sum[n][m][r], to[16 * m + 8] = sum[n][m][2 + r];
      }
  }
};

}  // namespace mla
}  // namespace kd
