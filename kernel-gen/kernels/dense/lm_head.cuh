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
  for (int quad = 0; quad < OWN_QUADS; ++quad) {
#pragma unroll
    for (int i = 0; i < 4; ++i) bad |= !(x[quad][i] < INFINITY);
    most = fmaxf(most, fmaxf(fmaxf(x[quad][0], x[quad][1]), fmaxf(x[quad][2], x[quad][3])));  // drops a NaN, which `bad` keeps
  }
  if (most > -INFINITY) {
#pragma unroll
    for (int at = 4 * OWN_QUADS - 1; at >= 0; --at)
      if (x[at / 4][at % 4] == most) token = first + at / 4 * LANES * 4 + at % 4;
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

// Stores the logits of ROWS token rows from `token` on and describes their PARTS tiles from `tile` on: a tile of ROWS_AT_ONCE rows
// by a warp, of which this is number `own` of WARPS, side by side where it has several. `four(row, quad)` gives the sums of four
// neighbouring tokens of the vocabulary.
template <int ROWS, int PARTS, int WARPS, class Four>
__device__ __forceinline__ void describe(int64_t token, int tile, int own, float* logits, float* tiles, int M, int N, Four four) {
  constexpr int ROWS_AT_ONCE = 32 / LANES, ITEMS = ROWS / ROWS_AT_ONCE * PARTS, EACH = ITEMS > WARPS ? 2 : 1;
  const int all = (N + TILE - 1) / TILE, part = threadIdx.x % LANES;
#pragma unroll 1
  for (int begin = own; begin < ITEMS; begin += EACH * WARPS) {
    if (token + begin / PARTS * ROWS_AT_ONCE >= M) continue;  // alike in the whole warp
    float x[EACH][OWN_QUADS][4];
    const auto row = [=](int i) { return (begin + i * WARPS) / PARTS * ROWS_AT_ONCE + int(threadIdx.x) % 32 / LANES; };
    const auto here = [=](int i) { return tile + (begin + i * WARPS) % PARTS; };
    const auto live = [=](int i) { return begin + i * WARPS < ITEMS && token + row(i) < M && here(i) < all; };
    const auto first = [=](int i) { return here(i) * TILE + 4 * part; };
#pragma unroll
    for (int i = 0; i < EACH; ++i)
#pragma unroll
      for (int quad = 0; quad < OWN_QUADS; ++quad) {
        const int at = first(i) + quad * LANES * 4;
        float4 sum = make_float4(-INFINITY, -INFINITY, -INFINITY, -INFINITY);
        if (live(i) && at < N) {
          sum = four(row(i), (begin + i * WARPS) % PARTS * QUADS + quad * LANES + part);
          *reinterpret_cast<float4*>(logits + (token + row(i)) * N + at) = sum;
        }
        x[i][quad][0] = sum.x, x[i][quad][1] = sum.y, x[i][quad][2] = sum.z, x[i][quad][3] = sum.w;
      }
    float4 of_tile[EACH];
#pragma unroll
    for (int i = 0; i < EACH; ++i) of_tile[i] = summary(x[i], first(i));
#pragma unroll
    for (int i = 0; i < EACH; ++i)
      if (part == 0 && live(i)) *reinterpret_cast<float4*>(tiles + ((token + row(i)) * all + here(i)) * 4) = of_tile[i];
  }
}

}  // namespace head

template <class U, class S>
__device__ __forceinline__ void lm_head(const __nv_bfloat16* x, const __nv_bfloat16* w, float* logits, float* tiles, int M,
                                        int N) {
  gemm::sum_tile<U, S>(x, w, M, N, blockIdx.z);
  constexpr int PARTS = U::ROWS / head::TILE, WARPS = U::THREADS / 32;
  static_assert(U::ROWS % head::TILE == 0 && U::THREADS % 32 == 0 && U::TOKENS % 8 == 0, "whole tiles and warps");
  head::describe<U::TOKENS, PARTS, U::CTAS * WARPS>(int64_t(blockIdx.y) * U::TOKENS, blockIdx.z * PARTS,
                                                    blockIdx.x * WARPS + threadIdx.x / 32, logits, tiles, M, N,
                                                    [](int row, int quad) { return gemm::sum4<U, S>(row, quad); });
  gemm::leave_tile<U>();
}

}  // namespace kd
