// Logits, and what their softmax and their K best need of each tile of 80 tokens of the vocabulary: maximum, its token,
// sum of e^(x - max), and whether there is a NaN or a +inf. The K best of a row lie in the K tiles with the best maxima, so
// `lm_head_top_k` (head_top_k.cuh) reads little more than the maxima.
#pragma once

#include "dense/gemm.cuh"

namespace kd {
namespace head {

constexpr int TILE = 80, QUADS = TILE / 4;

// Of one row's tile, by LANES neighbouring lanes: lane `part` of them holds quads part, part + LANES, .. of it (-inf where there
// is no token), the first of which starts with token `first`. In an order fixed by LANES.
constexpr int LANES = 4, OWN_QUADS = QUADS / LANES;

__device__ __forceinline__ float4 summary(const float (&x)[OWN_QUADS][4], int first) {
  constexpr uint32_t ALL = 0xffffffffu;
  float most = -INFINITY, sum = 0.0f;
  int token = first;
  bool bad = false;
#pragma unroll
  for (int quad = 0; quad < OWN_QUADS; ++quad)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      bad |= !(x[quad][i] < INFINITY);
      if (x[quad][i] > most) most = x[quad][i], token = first + quad * LANES * 4 + i;  // drops a NaN, which `bad` keeps
    }
#pragma unroll
  for (int step = 1; step < LANES; step *= 2) {
    const float others = __shfl_xor_sync(ALL, most, step);
    const int at = __shfl_xor_sync(ALL, token, step);
    if (others > most || (others == most && at < token)) most = others, token = at;
  }
#pragma unroll
  for (int quad = 0; quad < OWN_QUADS; ++quad)
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (x[quad][i] > -INFINITY && most < INFINITY) sum += expf(x[quad][i] - most);
#pragma unroll
  for (int step = 1; step < LANES; step *= 2) sum += __shfl_xor_sync(ALL, sum, step);
  const uint32_t all_bad = __ballot_sync(ALL, bad) >> threadIdx.x % 32 / LANES * LANES;
  return make_float4(most, sum, all_bad & ((1u << LANES) - 1) ? 1.0f : 0.0f, __int_as_float(token));
}

// Stores the logits of `rows` token rows from `token` on and describes their PARTS tiles from `tile` on: a tile of ROWS_AT_ONCE
// rows by a warp, of which this is number `own` of `warps`. `four(row, quad)` gives the sums of four neighbouring tokens of the
// vocabulary.
template <int PARTS, class Four>
__device__ __forceinline__ void describe(int rows, int64_t token, int tile, int own, int warps, float* logits, float* tiles, int M,
                                         int N, Four four) {
  constexpr int ROWS_AT_ONCE = 32 / LANES;
  const int all = (N + TILE - 1) / TILE, part = threadIdx.x % LANES;
#pragma unroll 1
  for (int i = own; i < rows / ROWS_AT_ONCE * PARTS; i += warps) {
    const int first_row = i / PARTS * ROWS_AT_ONCE, row = first_row + threadIdx.x % 32 / LANES, here = tile + i % PARTS;
    if (token + first_row >= M || here >= all) continue;  // alike in the whole warp
    const int first = here * TILE + 4 * part;
    float x[OWN_QUADS][4];
#pragma unroll
    for (int quad = 0; quad < OWN_QUADS; ++quad) {
      const int at = first + quad * LANES * 4;
      float4 sum = make_float4(-INFINITY, -INFINITY, -INFINITY, -INFINITY);
      if (token + row < M && at < N) {
        sum = four(row, i % PARTS * QUADS + quad * LANES + part);
        *reinterpret_cast<float4*>(logits + (token + row) * N + at) = sum;
      }
      x[quad][0] = sum.x, x[quad][1] = sum.y, x[quad][2] = sum.z, x[quad][3] = sum.w;
    }
    const float4 of_tile = summary(x, first);
    if (part == 0 && token + row < M) *reinterpret_cast<float4*>(tiles + ((token + row) * all + here) * 4) = of_tile;
  }
}

}  // namespace head

template <class U, class S>
__device__ __forceinline__ void lm_head(const __nv_bfloat16* x, const __nv_bfloat16* w, float* logits, float* tiles, int M,
                                        int N) {
  gemm::sum_tile<U, S>(x, w, M, N, blockIdx.z);
  constexpr int PARTS = U::ROWS / head::TILE, WARPS = U::THREADS / 32;
  static_assert(U::ROWS % head::TILE == 0 && U::THREADS % 32 == 0 && U::TOKENS % 8 == 0, "whole tiles and warps");
  head::describe<PARTS>(U::TOKENS, int64_t(blockIdx.y) * U::TOKENS, blockIdx.z * PARTS, blockIdx.x * WARPS + threadIdx.x / 32,
                        U::CTAS * WARPS, logits, tiles, M, N, [](int row, int quad) { return gemm::sum4<U, S>(row, quad); });
  gemm::leave_tile<U>();
}

}  // namespace kd
