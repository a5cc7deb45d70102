// Router: logits with K split over CTAs, then the choice, in one launch.
//
// A CTA makes the products of ROWS experts and TOKENS tokens over one segment of K; a warp has 16 experts, whose weights it
// has read in full before it waits for the kernel in front. The last CTA of an expert block adds the segments in their order
// and takes the sigmoid; the last expert block of a token tile chooses, one warp a token. Segments are fixed by H alone, so
// a row's bits depend neither on M nor on the variant.
#pragma once

#include "kd/arrive.cuh"
#include "kd/mma.cuh"
#include "ptx/memory.cuh"
#include "ptx/pdl.cuh"

namespace kd {
namespace route {

// Larger for what is chosen first: by value, then by lower id. NaN counts as -inf.
__device__ __forceinline__ uint64_t key(float value, int id) {
  const uint32_t bits = __float_as_uint(value == value ? value + 0.0f : -INFINITY);
  return uint64_t(bits & 0x80000000u ? ~bits : bits | 0x80000000u) << 32 | uint32_t(~id);
}

__device__ __forceinline__ uint64_t warp_max(uint64_t value) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    const uint64_t other = __shfl_xor_sync(0xffffffffu, value, step);
    value = other > value ? other : value;
  }
  return value;
}

// Sums of this CTA's segment into `partial`.
template <class U>
__device__ __forceinline__ void products(const __nv_bfloat16* x, const __nv_bfloat16* w, float* partial, int M) {
  constexpr int VECS = U::H / 8;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int expert = blockIdx.x * U::ROWS + warp * 16 + g, segment = blockIdx.y;
  const int64_t token = int64_t(blockIdx.z) * U::TOKENS + g;
  Bf16x8 low[U::STEPS] = {}, high[U::STEPS] = {};
#pragma unroll
  for (int i = 0; i < U::STEPS; ++i) {
    const int vec = (segment * U::SEG + 32 * i) / 8 + t;
    if (vec >= VECS) continue;
    if (expert < U::E) low[i] = load8_constant(w, int64_t(expert) * VECS + vec);
    if (expert + 8 < U::E) high[i] = load8_constant(w, int64_t(expert + 8) * VECS + vec);
  }
  ptx::grid_dependency_wait();
  float sum[U::TILES][4] = {};
#pragma unroll
  for (int tile = 0; tile < U::TILES; ++tile) {
    Bf16x8 own[U::STEPS] = {};
#pragma unroll
    for (int i = 0; i < U::STEPS; ++i) {
      const int vec = (segment * U::SEG + 32 * i) / 8 + t;
      if (vec < VECS && token + 8 * tile < M) own[i] = load8(x, (token + 8 * tile) * VECS + vec);
    }
#pragma unroll
    for (int i = 0; i < U::STEPS; ++i) mma_k32(sum[tile], low[i], high[i], own[i]);
  }
#pragma unroll
  for (int tile = 0; tile < U::TILES; ++tile) {
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const int64_t row = int64_t(blockIdx.z) * U::TOKENS + 8 * tile + 2 * t + c % 2;
      const int column = expert + 8 * (c / 2);
      if (row < M && column < U::E) partial[(row * U::SEGS + segment) * U::E + column] = sum[tile][c];
    }
  }
}

// Scores of this CTA's experts for its tokens, from the sums of all segments; four experts a thread.
template <class U>
__device__ __forceinline__ void scores(const float* partial, float* scores, int M) {
  constexpr int QUADS = U::ROWS / 4;
  for (int i = threadIdx.x; i < U::TOKENS * QUADS; i += U::THREADS) {
    const int64_t row = int64_t(blockIdx.z) * U::TOKENS + i / QUADS;
    const int expert = blockIdx.x * U::ROWS + i % QUADS * 4;
    if (row >= M || expert >= U::E) continue;
    float sum[4] = {};
#pragma unroll
    for (int segment = 0; segment < U::SEGS; ++segment) {
      const uint4 v = ptx::load16(partial + (row * U::SEGS + segment) * U::E + expert);
      sum[0] += __uint_as_float(v.x), sum[1] += __uint_as_float(v.y);
      sum[2] += __uint_as_float(v.z), sum[3] += __uint_as_float(v.w);
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) scores[row * U::E + expert + j] = 1.0f / (1.0f + expf(-sum[j]));
  }
}

// The sum of the two best of a group, in the order of choices; 0 for a group that does not exist.
__device__ __forceinline__ uint64_t group_key(const float* choice, int group, int groups, int size) {
  if (group >= groups) return 0;
  float first = -INFINITY, second = -INFINITY;
  for (int i = group * size; i < (group + 1) * size; ++i) {
    const float value = choice[i] == choice[i] ? choice[i] : -INFINITY;
    second = fmaxf(second, fminf(first, value));
    first = fmaxf(first, value);
  }
  return key(size > 1 ? first + second : first, group);
}

// Sets the choice scores outside the allowed groups to -inf. A lane ranks every 32nd group against all others.
template <class U>
__device__ __forceinline__ void keep_groups(float* choice, int groups, int top_groups) {
  const int lane = threadIdx.x % 32, size = U::E / groups;
  uint32_t barred = 0;  // bit i: group lane + 32 i
  for (int mine = 0; mine < groups; mine += 32) {
    const uint64_t own = group_key(choice, mine + lane, groups, size);
    int better = 0;
    for (int base = 0; base < groups; base += 32) {
      const uint64_t other = base == mine ? own : group_key(choice, base + lane, groups, size);
#pragma unroll 8
      for (int i = 0; i < 32; ++i) better += __shfl_sync(0xffffffffu, other, i) > own;
    }
    if (better >= top_groups) barred |= 1u << (mine / 32);
  }
  __syncwarp();
  for (int group = lane; group < groups; group += 32)
    if (barred >> (group / 32) & 1)
      for (int i = group * size; i < (group + 1) * size; ++i) choice[i] = -INFINITY;
  __syncwarp();
}

// One warp, one token.
template <class U>
__device__ __forceinline__ void choose(const float* scores, const float* bias, int groups, int top_groups, bool normalize,
                                       float scaling, float* choice, int32_t* ids, float* weights) {
  const int lane = threadIdx.x % 32;
  for (int e = lane; e < U::E; e += 32) choice[e] = ptx::load4f(scores + e) + __ldg(bias + e);
  __syncwarp();
  if (groups > 1) keep_groups<U>(choice, groups, top_groups);
  uint64_t own[U::PER_LANE];
#pragma unroll
  for (int i = 0; i < U::PER_LANE; ++i) {
    const int e = lane + 32 * i;
    own[i] = e < U::E ? key(choice[e], e) : 0;
  }
  int mine = U::E;  // lane i: the expert of rank i
#pragma unroll 1
  for (int rank = 0; rank < U::T; ++rank) {
    uint64_t best = 0;
#pragma unroll
    for (int i = 0; i < U::PER_LANE; ++i) best = own[i] > best ? own[i] : best;
    best = warp_max(best);
    if (lane == rank) mine = int(~uint32_t(best));
#pragma unroll
    for (int i = 0; i < U::PER_LANE; ++i) own[i] = own[i] == best ? 0 : own[i];
  }
  // Ascending ids: lane i finds the place of its expert.
  int place = 0;
#pragma unroll 1
  for (int other = 0; other < U::T; ++other) place += __shfl_sync(0xffffffffu, mine, other) < mine;
  const float score = lane < U::T ? ptx::load4f(scores + mine) : 0.0f;
  float sum = 0.0f;
#pragma unroll 1
  for (int at = 0; at < U::T; ++at) {  // in ascending order of id
    const uint32_t holder = __ballot_sync(0xffffffffu, lane < U::T && place == at);
    sum += __shfl_sync(0xffffffffu, score, __ffs(holder) - 1);
  }
  if (lane < U::T) {
    ids[place] = mine;
    weights[place] = score / (normalize ? sum + 1e-20f : 1.0f) * scaling;
  }
  __syncwarp();
}

}  // namespace route

template <class U, class S>
__device__ __forceinline__ void router(const __nv_bfloat16* x, const __nv_bfloat16* w, const float* bias, int32_t groups,
                                       int32_t top_groups, int32_t normalize, float scaling, float* partial,
                                       int32_t* summed, int32_t* scored, float* scores, int32_t* ids, float* weights,
                                       int M) {
  route::products<U>(x, w, partial, M);
  if (!arrive_last(summed + blockIdx.z * U::BLOCKS + blockIdx.x, U::SEGS, S::flag())) return;
  route::scores<U>(partial, scores, M);
  if (!arrive_last(scored + blockIdx.z, U::BLOCKS, S::flag())) return;
  const int warp = threadIdx.x / 32;
  for (int i = warp; i < U::TOKENS; i += U::THREADS / 32) {
    const int64_t row = int64_t(blockIdx.z) * U::TOKENS + i;
    if (row >= M) break;
    route::choose<U>(scores + row * U::E, bias, groups, top_groups, normalize != 0, scaling, S::choice() + warp * U::E,
                     ids + row * U::T, weights + row * U::T);
  }
}

}  // namespace kd
