// What the eight warps of tree_mla do with a step of 16 keys for a tile of 64 rows, which are the m16 side of the products.
#pragma once

#include "attn/mla_softmax.cuh"
#include "ptx/ldmatrix.cuh"
#include "ptx/mma.cuh"

namespace kd {
namespace mla {

// Scores: a warp takes half of the rows and a quarter of the latent. Softmax: eight rows. Mix: an eighth of the columns.
template <class U, class S>
struct Wide {
  static constexpr int TILES = U::MT / 2;   // of 16 rows, scored by a warp
  static constexpr int PAIRS = U::C / 128;  // of eight columns, mixed by a warp
  using Feed = mla::Feed<U, S>;

  uint32_t thread = threadIdx.x, own;
  int warp, lane, g, t, quarter, half;
  int eight;  // of the tile's rows, which this warp weighs
  uint32_t query[TILES][Quarter<U>::STEPS][4];
  float sum[U::MT][2 * PAIRS][4];
  float total;  // of row 8 * eight + g: see Softmax, whose base lies in shared memory, since registers are scarce
  using Part = float[TILES][2][4];

  // With FP8 pages there is no register left for it.
  __device__ __forceinline__ float total_so_far() const {
    if constexpr (U::FP8) return S::total()[own];
    else return total;
  }
  __device__ __forceinline__ void keep_total(float value) {
    if constexpr (U::FP8) S::total()[own] = value;
    else total = value;
  }

  // Makes the compiler work out addresses anew: it would rather keep them in memory than registers free for them.
  __device__ __forceinline__ void renew(bool few = false) {
    own = ptx::opaque(thread);  // no sign, so that division is a shift
    warp = own / 32, lane = own % 32, g = lane / 4, t = lane % 4;
    quarter = warp % 4, half = warp / 4;
    eight = few ? warp ^ 4 : warp;
  }

  __device__ __forceinline__ static bool serves(const Step& step, int tile) {
    return step.low < 16 * tile + 16 && step.high > 16 * tile;
  }
  __device__ __forceinline__ static bool serves_row(const Step& step, int row) { return row >= step.low && row < step.high; }
  __device__ __forceinline__ bool scores(const Step& step) const {
    return step.low < 16 * TILES * (half + 1) && step.high > 16 * TILES * half;
  }
  __device__ __forceinline__ bool has(int k) const { return Quarter<U>::has(quarter, k); }

  // Takes this warp's queries of tile `i` of its half, which are in the ring.
  __device__ __forceinline__ void take_queries(int i, int slot) {
    const uint32_t from = Feed::at(slot) + lane % 16 * U::KEY + lane / 16 * 16;
#pragma unroll
    for (int k = 0; k < Quarter<U>::STEPS; ++k)
      if (has(k)) ptx::ldmatrix4(query[i][k], from + Quarter<U>::at(quarter, k));
  }
  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int m = 0; m < U::MT; ++m)
#pragma unroll
      for (int n = 0; n < 2 * PAIRS; ++n)
#pragma unroll
        for (int c = 0; c < 4; ++c) sum[m][n][c] = 0.0f;
    keep_total(0.0f);
    if (own < U::ROWS) S::base()[own] = -INFINITY;
  }

  // Where a lane finds four keys' scores of the eight rows number `rows` of a half, from warp `from`.
  __device__ __forceinline__ float* place(int rows, int from) const { return S::scores() + (rows * 8 + from) * 128 + lane * 4; }

  // This warp's part of the scores over the keys in ring place `slot`.
  template <int COUNT>
  __device__ __forceinline__ void score(Part& part, int slot) const {
    const uint32_t from = Feed::at(slot) + (lane % 8 + lane / 16 * 8) * U::KEY + lane / 8 % 2 * 16;
#pragma unroll
    for (int i = 0; i < COUNT; ++i)
#pragma unroll
      for (int n = 0; n < 2; ++n)
#pragma unroll
        for (int c = 0; c < 4; ++c) part[i][n][c] = 0.0f;
    // Loaded two steps ahead.
    uint32_t b[3][4];
    if (has(0)) ptx::ldmatrix4(b[0], from + Quarter<U>::at(quarter, 0));
    if (has(1)) ptx::ldmatrix4(b[1], from + Quarter<U>::at(quarter, 1));
#pragma unroll
    for (int k = 0; k < Quarter<U>::STEPS; ++k) {
      if (has(k + 2)) ptx::ldmatrix4(b[(k + 2) % 3], from + Quarter<U>::at(quarter, k + 2));
      if (!has(k)) continue;
#pragma unroll
      for (int n = 0; n < 2; ++n)
#pragma unroll
        for (int i = 0; i < COUNT; ++i)
          ptx::mma_16816_bf16(part[i][n], query[i][k][0], query[i][k][1], query[i][k][2], query[i][k][3], b[k % 3][2 * n],
                              b[k % 3][2 * n + 1]);
    }
  }
  // To the warps that finish them. ALL: of all rows.
  template <bool ALL, int COUNT>
  __device__ __forceinline__ void put(const Part& part, const Step& step) const {
#pragma unroll
    for (int i = 0; i < COUNT; ++i)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int rows = 2 * i + r;
        if (ALL || serves_row(step, 8 * (2 * TILES * half + rows) + g))
          *reinterpret_cast<float4*>(S::scores() + rows * 1024 + own * 4) =
              float4{part[i][0][2 * r], part[i][0][2 * r + 1], part[i][1][2 * r], part[i][1][2 * r + 1]};
      }
  }

  // Barriers: a half's scores are there; all warps have weighed a step, and so mixed the one before it.
  __device__ __forceinline__ static uint64_t* scored(int half) { return S::ready() + half; }
  __device__ __forceinline__ static uint64_t* weighed() { return S::ready() + 2; }
  // FP8: all warps have made values of a step's codes.
  __device__ __forceinline__ static uint64_t* expanded() { return S::ready() + 3; }
  __device__ __forceinline__ void tell(uint64_t* barrier) const { ptx::barrier_arrive_warp(barrier, lane); }
  // Scores of the eight rows that this warp weighs.
  __device__ __forceinline__ void take_scores(float (&s)[4]) const {
    float4 part[4];
#pragma unroll
    for (int from = 0; from < 4; ++from) part[from] = *reinterpret_cast<const float4*>(place(eight % 4, eight / 4 * 4 + from));
    s[0] = (part[0].x + part[1].x) + (part[2].x + part[3].x), s[1] = (part[0].y + part[1].y) + (part[2].y + part[3].y);
    s[2] = (part[0].z + part[1].z) + (part[2].z + part[3].z), s[3] = (part[0].w + part[1].w) + (part[2].w + part[3].w);
  }
  // Scores to weights; weights of two steps are kept, by `parity`.
  template <bool ALL>
  __device__ __forceinline__ void weigh(const Step& step, int parity) {
    float s[4];
    take_scores(s);
    const int row = 8 * eight + g;
    Softmax softmax = {S::base()[row], total_so_far()};
    float keep;
    bool changed;
    const uint2 weights = ALL ? softmax.weigh_straight(s, *S::factor(), keep, changed)
                              : softmax.template weigh<false>(s, *S::factor(), step, serves_row(step, row), keep, changed);
    keep_total(softmax.total);
    // All lanes of a row have read its base before they voted whether any rises, which racecheck does not follow.
    if (ptx::EVERY_LANE_ARRIVES) __syncwarp();
    if (changed && t == 0) S::base()[row] = softmax.base;
    uint32_t* to = reinterpret_cast<uint32_t*>(S::weights() + (parity * U::ROWS + row) * KEYS) + t;
    const int swap = g / 4 * 4;
    to[swap] = weights.x;
    to[4 - swap] = weights.y;
    if (lane == 0) S::changed()[8 * parity + eight] = changed;
    if (t == 0) S::keep()[parity * U::ROWS + row] = keep;
  }

  // Whether a row's base rose, by eight rows.
  __device__ __forceinline__ uint2 rises(int parity) const {
    return *reinterpret_cast<const uint2*>(S::changed() + 8 * parity);
  }
  // Scales the sums where a row's base rose.
  template <int COUNT>
  __device__ __forceinline__ void scale(int parity, const uint2& flags) {
    if ((flags.x | flags.y) == 0) return;
#pragma unroll
    for (int m = 0; m < COUNT; ++m) {
      const uint8_t* changed = S::changed() + 8 * parity + 2 * m;
      const float* keep = S::keep() + parity * U::ROWS + 16 * m + g;
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        if (!changed[r]) continue;
        const float by = keep[8 * r];
#pragma unroll
        for (int n = 0; n < 2 * PAIRS; ++n) sum[m][n][2 * r] *= by, sum[m][n][2 * r + 1] *= by;
      }
    }
  }

  __device__ __forceinline__ void take_weights(int m, int parity, uint32_t (&a)[4]) const {
    const int row = lane % 16;
    ptx::ldmatrix4(a, ptx::shared_address(S::weights() + (parity * U::ROWS + 16 * m) * KEYS) + row * 2 * KEYS +
                          (lane / 16 ^ row / 4 % 2) * 16);
  }

  // Weights times the latents in ring place `slot`. ALL: for all rows, whose sums are scaled first,
  // by `flags`.
  template <bool ALL, int COUNT>
  __device__ __forceinline__ void mix(const Step& step, int slot, int parity, const uint2& flags) {
    const uint32_t latents = Feed::at(slot) + lane % 16 * U::KEY + lane / 16 * 16 + warp * (U::C / 4);
    uint32_t values[PAIRS][4], a[2][4];
    take_weights(0, parity, a[0]);
#pragma unroll
    for (int n = 0; n < PAIRS; ++n) ptx::ldmatrix4_transposed(values[n], latents + 32 * n);
    if (ALL) scale<COUNT>(parity, flags);
#pragma unroll
    for (int m = 0; m < COUNT; ++m) {
      if (m + 1 < COUNT) take_weights(m + 1, parity, a[(m + 1) % 2]);
      if (!ALL && !serves(step, m)) continue;
      uint32_t(&w)[4] = a[m % 2];
      if (!ALL && !serves_row(step, 16 * m + g)) w[0] = w[2] = 0;
      if (!ALL && !serves_row(step, 16 * m + 8 + g)) w[1] = w[3] = 0;
#pragma unroll
      for (int n = 0; n < PAIRS; ++n) {
        ptx::mma_16816_bf16(sum[m][2 * n], w[0], w[1], w[2], w[3], values[n][0], values[n][1]);
        ptx::mma_16816_bf16(sum[m][2 * n + 1], w[0], w[1], w[2], w[3], values[n][2], values[n][3]);
      }
    }
  }

  // So few rows that the first half of the warps scores them, the other weighs.
  __device__ __forceinline__ static bool few(const Work& work) { return work.rows <= KEYS; }

  // Partial results: the mix that is not yet divided, the score (times log2 e) that weights are relative to, and their sum.
  __device__ __forceinline__ void store(const Work& work, float* part_o, float* part_ml, int Z) {
    renew(few(work));
    const int64_t first = work.part, room = Z - first;
    const int rows = work.rows;
    const int weighed = 8 * eight + g;
    const Softmax softmax = {S::base()[weighed], total_so_far()};
    const float all = softmax.all();
    if (t == 0 && weighed < rows && weighed < room)
      *reinterpret_cast<float2*>(part_ml + (first + weighed) * 2) = float2{softmax.base, all};
    float* to = part_o + (first + g) * U::C + warp * (U::C / 8) + 2 * t;
#pragma unroll
    for (int m = 0; m < U::MT; ++m)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int row = 16 * m + 8 * r + g;
#pragma unroll
        for (int n = 0; n < 2 * PAIRS; n += 2) {
          // Even lanes get four columns of tile n, odd ones of the next.
          const bool odd = t % 2 != 0;
          float *even = sum[m][n] + 2 * r, *next = sum[m][n + 1] + 2 * r;
          const float2 give = odd ? float2{even[0], even[1]} : float2{next[0], next[1]};
          const float2 keep = odd ? float2{next[0], next[1]} : float2{even[0], even[1]};
          const float2 got = {__shfl_xor_sync(0xffffffffu, give.x, 1), __shfl_xor_sync(0xffffffffu, give.y, 1)};
          if (row >= rows || row >= room) continue;
          *reinterpret_cast<float4*>(to + (16 * m + 8 * r) * U::C + 8 * n + (odd ? 6 : 0)) =
              odd ? float4{got.x, got.y, keep.x, keep.y} : float4{keep.x, keep.y, got.x, got.y};
        }
      }
  }
};

}  // namespace mla
}  // namespace kd
