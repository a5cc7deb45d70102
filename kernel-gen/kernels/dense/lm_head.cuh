// Logits, and what their softmax and their K best need of each tile of 128 tokens of the vocabulary: maximum, its token,
// sum of e^(x - max), and whether there is a NaN or a +inf. The K best of a row lie in the K tiles with the best maxima, so
// `lm_head_top_k` reads little more than the maxima.
#pragma once

#include "dense/gemm.cuh"
#include "kd/reduce.cuh"
#include "kd/select.cuh"
#include "ptx/memory.cuh"

namespace kd {
namespace head {

constexpr int TILE = 128;

// By a whole warp that holds a tile of one row, four logits a lane; `first` is the token of this lane's first.
__device__ __forceinline__ float4 summary(const float (&x)[4], int first) {
  float most = -INFINITY, sum = 0.0f;
  int token = first;
  bool bad = false;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    bad |= !(x[i] < INFINITY);
    if (x[i] > most) most = x[i], token = first + i;  // drops a NaN, which `bad` keeps
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    const float other = __shfl_xor_sync(0xffffffffu, most, step);
    const int other_token = __shfl_xor_sync(0xffffffffu, token, step);
    if (other > most || (other == most && other_token < token)) most = other, token = other_token;
  }
#pragma unroll
  for (int i = 0; i < 4; ++i)
    if (x[i] > -INFINITY && most < INFINITY) sum += expf(x[i] - most);
#pragma unroll
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
  bad = __any_sync(0xffffffffu, bad);
  return make_float4(most, sum, bad ? 1.0f : 0.0f, __int_as_float(token));
}

// The softmax sums of a row from those of its tiles, and its flag. By the whole CTA, in an order fixed by TILES.
template <class U, class S>
__device__ __forceinline__ void join(const float4 (&own)[U::OWN], float* stats, int32_t* finite) {
  float most = -INFINITY, sum = 0.0f;
  bool bad = false;
#pragma unroll
  for (int i = 0; i < U::OWN; ++i) most = fmaxf(most, own[i].x), bad |= own[i].z != 0.0f;
  most = block_max<U::THREADS>(most, S::partial());
#pragma unroll
  for (int i = 0; i < U::OWN; ++i)
    if (own[i].x > -INFINITY && most < INFINITY) sum += own[i].y * expf(own[i].x - most);
  sum = block_sum<U::THREADS>(sum, S::partial());
  bad = __syncthreads_or(bad);
  if (threadIdx.x != 0) return;
  stats[0] = most;
  stats[1] = sum;
  *finite = !bad && most > -INFINITY;
}

}  // namespace head

template <class U, class S>
__device__ __forceinline__ void lm_head(const __nv_bfloat16* x, const __nv_bfloat16* w, float* logits, float* tiles, int M,
                                        int N) {
  static_assert(U::ROWS == head::TILE && U::THREADS % 32 == 0, "a warp combines one tile of a row");
  const int parts = (N + head::TILE - 1) / head::TILE;
  gemm::product<U, S>(x, w, M, N, blockIdx.z, [=](int64_t token, int row, float4 sum) {
    if (row < N) *reinterpret_cast<float4*>(logits + token * N + row) = sum;
    const float none = -INFINITY;
    const float own[4] = {row < N ? sum.x : none, row < N ? sum.y : none, row < N ? sum.z : none, row < N ? sum.w : none};
    const float4 tile = head::summary(own, row);
    if (threadIdx.x % 32 == 0) *reinterpret_cast<float4*>(tiles + (token * parts + row / head::TILE) * 4) = tile;
  });
}

template <class U, class S>
__device__ __forceinline__ void lm_head_top_k(const float* logits, const float* tiles, int32_t rank, int32_t* tokens,
                                              float* values, float* stats, int32_t* finite, int M) {
  const int64_t row = blockIdx.x;
  // Neighbouring tiles go to different warps, so that each has its share of few tiles too.
  const int first_tile = threadIdx.x % 32 * U::WARPS + threadIdx.x / 32;
  ptx::grid_dependency_wait();
  float4 own[U::OWN];
#pragma unroll
  for (int i = 0; i < U::OWN; ++i) {
    const int tile = first_tile + i * U::THREADS;
    uint4 v = make_uint4(0xff800000u, 0, 0, 0);  // -inf
    if (tile < U::TILES) v = ptx::load16(tiles + (row * U::TILES + tile) * 4);
    own[i] = make_float4(__uint_as_float(v.x), __uint_as_float(v.y), __uint_as_float(v.z), __uint_as_float(v.w));
  }
  ptx::grid_dependency_launch();
  // The tiles with the K best maxima, in any order, and the least of these maxima, which as many logits reach.
  int32_t* chosen = S::chosen();
  select<U, S, U::OWN>([&](int i) { return ordered(own[i].x); },
                       [&](int i) { return entry_of(ordered(own[i].x), uint32_t(__float_as_int(own[i].w))); },
                       [&](int place, uint64_t entry) {
                         chosen[place] = entry == 0 ? -1 : int32_t(~uint32_t(entry)) / head::TILE;
                         if (place == U::K - 1) *S::least() = ::max(uint32_t(entry >> 32), 1u);
                       });
  __syncthreads();
  float x[U::SCANNED];
  int first[U::SCANNED / 4];
#pragma unroll
  for (int i = 0; i < U::SCANNED / 4; ++i) {
    const int place = i * U::THREADS + threadIdx.x, tile = chosen[place / (head::TILE / 4)];
    first[i] = tile * head::TILE + place % (head::TILE / 4) * 4;
    uint4 v = make_uint4(0xff800000u, 0xff800000u, 0xff800000u, 0xff800000u);
    if (tile >= 0 && first[i] < U::V) v = ptx::load16(logits + row * U::V + first[i]);
    x[4 * i] = __uint_as_float(v.x), x[4 * i + 1] = __uint_as_float(v.y);
    x[4 * i + 2] = __uint_as_float(v.z), x[4 * i + 3] = __uint_as_float(v.w);
  }
  const uint32_t least = *S::least();
  if (threadIdx.x == 0) S::count()[0] = 0;
  head::join<U, S>(own, stats + row * 2, finite + row);  // synchronises, while the logits arrive
  const auto high = [&](int i) { return ordered(x[i]); };
  select_from<U, S, U::SCANNED>(least > 1 ? least : lead_floor<U, S, U::SCANNED>(high), high,
                                [&](int i) { return entry_of(ordered(x[i]), uint32_t(first[i / 4] + i % 4)); },
                                [&](int place, uint64_t entry) {
                                  tokens[row * U::K + place] = entry == 0 ? -1 : rank * U::V + int32_t(~uint32_t(entry));
                                  values[row * U::K + place] = entry == 0 ? -INFINITY : logit_of(uint32_t(entry >> 32));
                                });
}

}  // namespace kd
