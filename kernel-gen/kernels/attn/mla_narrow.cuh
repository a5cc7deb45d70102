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
  uint32_t query[U::NT][Quarter<U>::STEPS][2];
  float sum[U::NT][COLUMNS][4];
  Softmax softmax[U::NT];  // of rows 8 * n + g

  __device__ __forceinline__ bool has(int k) const { return Quarter<U>::has(quarter, k); }

  __device__ __forceinline__ void take_queries(int slot) {
#pragma unroll
    for (int n = 0; n < U::NT; ++n) {
      const uint32_t from = Feed::at(slot) + (8 * n + lane % 8) * U::KEY + lane / 8 % 2 * 16;
#pragma unroll
      for (int k = 0; k < Quarter<U>::STEPS; ++k)
        if (has(k)) ptx::ldmatrix2(query[n][k], from + Quarter<U>::at(quarter, k));
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
    const uint32_t from = Feed::at(slot) + lane % 16 * U::KEY + lane / 16 * 16;
    float part[U::NT][4] = {};
    uint32_t a[Quarter<U>::STEPS][4];
#pragma unroll
    for (int k = 0; k < Quarter<U>::STEPS; ++k)
      if (has(k)) ptx::ldmatrix4(a[k], from + Quarter<U>::at(quarter, k));
#pragma unroll
    for (int k = 0; k < Quarter<U>::STEPS; ++k) {
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

  // This lane's four scores of tile n in step `number` of the two.
  __device__ __forceinline__ void take_scores(int number, int n, float (&s)[4]) const {
    float2 part[4][2];
#pragma unroll
    for (int from = 0; from < 4; ++from)
#pragma unroll
      for (int i = 0; i < 2; ++i)
        part[from][i] = *reinterpret_cast<const float2*>(place(number, from, n) + g * STRIDE + 2 * t + 8 * i);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      s[2 * i] = (part[0][i].x + part[1][i].x) + (part[2][i].x + part[3][i].x);
      s[2 * i + 1] = (part[0][i].y + part[1][i].y) + (part[2][i].y + part[3][i].y);
    }
  }

  __device__ __forceinline__ void take_values(int slot, uint32_t (&values)[COLUMNS][4]) const {
    const uint32_t latents =
        Feed::at(slot) + (lane % 8 + lane / 16 * 8) * U::KEY + lane / 8 % 2 * 16 + warp * (U::C / 4);
#pragma unroll
    for (int m = 0; m < COLUMNS; ++m) ptx::ldmatrix4_transposed(values[m], latents + 32 * m);
  }

  template <int n>
  __device__ __forceinline__ void add(const uint2& weights, const uint32_t (&values)[COLUMNS][4]) {
#pragma unroll
    for (int m = 0; m < COLUMNS; ++m)
      ptx::mma_16816_bf16(sum[n][m], values[m][0], values[m][1], values[m][2], values[m][3], weights.x, weights.y);
  }

  // Scores of one step and tile n to weights, and these times the latents.
  template <bool ALL, int n>
  __device__ __forceinline__ void mix_one(const Step& step, float (&s)[4], const uint32_t (&values)[COLUMNS][4]) {
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
    add<n>(weights, values);
  }

  // One step.
  __device__ __forceinline__ void mix(const Step& step, int number, int slot) {
    uint32_t values[COLUMNS][4];
    float s[4];
    take_values(slot, values);
    take_scores(number, 0, s);
    mix_one<false, 0>(step, s, values);
    if constexpr (U::NT > 1) {
      take_scores(number, 1, s);
      mix_one<false, 1>(step, s, values);
    }
  }

  // Both steps of tile n, all of whose rows see all keys: as a rule no base rises, and nothing waits for the first.
  template <int n>
  __device__ __forceinline__ void mix_pair(const uint32_t (&values)[2][COLUMNS][4]) {
    float s[2][4];
    take_scores(0, n, s[0]);
    take_scores(1, n, s[1]);
    const float by = *factor;
    float best = -INFINITY;
#pragma unroll
    for (int i = 0; i < 8; ++i) best = fmaxf(best, s[i / 4][i % 4] * by);
    if (__any_sync(0xffffffffu, best > softmax[n].base + SLACK)) {
      mix_one<true, n>(Step{}, s[0], values[0]);
      mix_one<true, n>(Step{}, s[1], values[1]);
    } else {
#pragma unroll
      for (int i = 0; i < 8; ++i) s[i / 4][i % 4] *= by;
      const uint2 first = softmax[n].template take<true>(s[0], true, 1.0f);
      const uint2 second = softmax[n].template take<true>(s[1], true, 1.0f);
      add<n>(first, values[0]);
      add<n>(second, values[1]);
    }
  }
  __device__ __forceinline__ void mix_both(int slot, int second) {
    uint32_t values[2][COLUMNS][4];
    take_values(slot, values[0]);
    take_values(second, values[1]);
    mix_pair<0>(values);
    if constexpr (U::NT > 1) mix_pair<1>(values);
  }

  // Partial results, as those of wide tiles.
  __device__ __forceinline__ void store(const Work& work, float* part_o, float* part_ml, int Z) const {
    const int64_t first = work.part, room = ::min(int64_t(work.rows), Z - work.part);
    float total = softmax[0].all(), base = softmax[0].base;
    if constexpr (U::NT > 1) {
      const float other = softmax[1].all();
      if (warp == 1) total = other, base = softmax[1].base;
    }
    if (warp < U::NT && t == 0 && 8 * warp + g < room)
      *reinterpret_cast<float2*>(part_ml + (first + 8 * warp + g) * 2) = float2{base, total};
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
