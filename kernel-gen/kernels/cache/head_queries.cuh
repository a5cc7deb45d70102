// The query side of attention for few rows: a cluster of eight CTAs makes one head's queries of eight tokens.
//
// Weights do not wait for the kernel in front: a CTA's rows of q_b_proj are copied to shared memory, its rows of W_UK to registers.
// Each CTA norms the compressed queries for itself, multiplies them with its eighth of the head's rows, rotates what is to be
// rotated, and sends the rest to the other seven, which multiply it with their eighth of the latents. A warp more, in the first
// head's clusters, makes the cache entry of a token. Sums have the order that they have in mla_inputs, dense, query_rope and
// absorb_query, so results have the same bits.
#pragma once

#include "cache/mla_inputs.cuh"
#include "dense/split.cuh"
#include "ptx/bulk.cuh"
#include "ptx/cluster.cuh"
#include "ptx/mma.cuh"
#include "ptx/push.cuh"

namespace kd {
namespace queries {

// The product with q_b_proj as `dense` cuts it.
template <class U>
struct Cut {
  static constexpr int K = U::Q, SEGS = U::SEGS, STEP = 64, ROWS = 16, TOKENS = U::TOKENS, GROUPS = 1, RUN = 1, CTAS = 1, WR = 1,
                       WT = 1;
};

// Where this CTA's part lies.
template <class U>
struct Place {
  int rank = blockIdx.x, head = blockIdx.z, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  int64_t token = int64_t(blockIdx.y) * U::TOKENS;  // its first
};

// The weights of 16 rows over K values of k, in the layout of mma operands.
template <int K>
struct Rows16 {
  uint32_t a[K / 16][4];

  __device__ __forceinline__ void load(const __nv_bfloat16* from) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const uint32_t* low = reinterpret_cast<const uint32_t*>(from + g * K) + t;
    const uint32_t* high = low + 8 * K / 2;
#pragma unroll
    for (int i = 0; i < K / 16; ++i)
      a[i][0] = __ldg(low + 8 * i), a[i][1] = __ldg(high + 8 * i), a[i][2] = __ldg(low + 8 * i + 4),
      a[i][3] = __ldg(high + 8 * i + 4);
  }
};

// The compressed queries, normed as in mla_inputs, WARPS warps a token: to S::tokens().
template <class U, class S>
__device__ __forceinline__ void norm_tokens(const Place<U>& at, const __nv_bfloat16* x, const Bf16x8 (&gain)[U::VPT], float eps,
                                            int M) {
  constexpr int LANES = 32 * U::WARPS, BESIDE = U::TEAM / U::WARPS, ROUNDS = (U::TOKENS + BESIDE - 1) / BESIDE;
  const int own = at.warp % U::WARPS * 32 + at.lane;
  const auto token = [&](int round) { return at.warp / U::WARPS + round * BESIDE; };
  const auto live = [&](int round) {
    return at.warp < BESIDE * U::WARPS && token(round) < U::TOKENS && at.token + token(round) < M;
  };
  Bf16x8 vec[ROUNDS][U::VPT] = {};
#pragma unroll
  for (int round = 0; round < ROUNDS; ++round)
#pragma unroll
    for (int i = 0; i < U::VPT; ++i)
      if (live(round) && own + LANES * i < U::QVECS)
        vec[round][i] = load8(x, (at.token + token(round)) * U::VECS + own + LANES * i);
#pragma unroll
  for (int round = 0; round < ROUNDS; ++round) {
    if (!live(round)) continue;
    const float squares = mla::squares_of(vec[round]);
    if (at.lane == 0) S::partial()[token(round) * U::WARPS + at.warp % U::WARPS] = squares;
  }
  ptx::named_barrier<32 * U::TEAM>(1);
#pragma unroll
  for (int round = 0; round < ROUNDS; ++round) {
    if (!live(round)) continue;
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < U::WARPS; ++i) sum += S::partial()[token(round) * U::WARPS + i];
    const float scale = 1.0f / sqrtf(sum * (1.0f / U::Q) + eps);
    __nv_bfloat16* to = reinterpret_cast<__nv_bfloat16*>(S::tokens() + token(round) * U::PITCH);
#pragma unroll
    for (int i = 0; i < U::VPT; ++i)
      if (own + LANES * i < U::QVECS) store8(to, own + LANES * i, mla::scaled(vec[round][i], gain[i], scale));
  }
  ptx::named_barrier<32 * U::TEAM>(1);
}

// Operands of 32 values of k: 16 rows from `a`, this lane's row and half, and 8 tokens from `b`.
struct Operands32 {
  uint32_t a[2][4], b[4];

  __device__ __forceinline__ void load_tokens(uint32_t from) { ptx::ldmatrix4(b, from); }
  __device__ __forceinline__ void load_rows(uint32_t from) {
    ptx::ldmatrix4(a[0], from);
    ptx::ldmatrix4(a[1], from + 32);
  }
};

__device__ __forceinline__ void multiply(float (&sum)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  ptx::mma_16816_bf16(sum, a[0], a[1], a[2], a[3], b0, b1);
}

// The address of this lane's row of 8 tokens, PITCH bytes apart, for 32 values of k.
template <int PITCH>
__device__ __forceinline__ uint32_t tokens_at(const unsigned char* tokens) {
  const int lane = threadIdx.x % 32;
  return ptx::shared_address(tokens) + lane % 8 * PITCH + lane / 8 * 16;
}

// The sums of the segments of this CTA's rows of q_b_proj: to S::tokens(), as [segment][token][LINE].
template <class U, class S>
__device__ __forceinline__ void project(const Place<U>& at) {
  using Blocks = gemm::Shape<Cut<U>>;
  const int tile = at.warp % U::TILES, segment = at.warp / U::TILES;
  float sum[4] = {};
  if (segment < U::SEGS) {
    // Rows that a tile has too many are others' once more; their sums are not read.
    const int row = ::min(tile * 16 + at.lane % 16, U::SHARE - 1);
    const uint32_t rows = ptx::shared_address(S::weights()) + row * U::PITCH + at.lane / 16 * 16;
    const uint32_t tokens = tokens_at<U::PITCH>(S::tokens());
    const int end = ::min(Blocks::first(segment + 1) * 64, U::Q);
    ptx::barrier_wait(S::full(), 0);
#pragma unroll 4
    for (int k = Blocks::first(segment) * 64; k < end; k += 32) {
      Operands32 own;
      own.load_rows(rows + 2 * k);
      own.load_tokens(tokens + 2 * k);
      multiply(sum, own.a[0], own.b[0], own.b[1]);
      multiply(sum, own.a[1], own.b[2], own.b[3]);
    }
  }
  ptx::named_barrier<32 * U::TEAM>(1);  // the sums take the place of the tokens
  if (segment < U::SEGS) {
    float* to = reinterpret_cast<float*>(S::tokens()) + segment * U::TOKENS * U::LINE + 16 * tile;
#pragma unroll
    for (int c = 0; c < 4; ++c) to[(at.lane % 4 * 2 + c % 2) * U::LINE + at.lane / 4 + 8 * (c / 2)] = sum[c];
  }
  ptx::named_barrier<32 * U::TEAM>(1);
}

// Eight neighbouring values of a token's query, its segments added in order and rounded.
template <class U, class S>
__device__ __forceinline__ Bf16x8 add_segments(int token, int vector) {
  const float* from = reinterpret_cast<const float*>(S::tokens()) + token * U::LINE + 8 * vector;
  float sum[8];
#pragma unroll
  for (int segment = 0; segment < U::SEGS; ++segment)
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float next = from[segment * U::TOKENS * U::LINE + i];
      sum[i] = segment == 0 ? next : sum[i] + next;
    }
  return narrow8(sum);
}

// Rotates what is to be rotated into `y`, and sends the rest to every CTA of the cluster: to its S::query().
template <class U, class S>
__device__ __forceinline__ void deal(const Place<U>& at, const float* rope, const int32_t* positions, __nv_bfloat16* y, int M, int P) {
  constexpr int VECS = U::SHARE / 8, EACH = VECS * U::TOKENS;
  for (int i = threadIdx.x; i < EACH * U::RANKS; i += 32 * U::TEAM) {
    const int to = i / EACH, token = i % EACH % U::TOKENS, vector = i % EACH / U::TOKENS;
    const int vec = at.rank * VECS + vector, turned = vec - U::N / 8;
    const int64_t row = at.token + token;
    if (turned >= 0 && (to > 0 || row >= M)) continue;
    Bf16x8 value = add_segments<U, S>(token, vector);
    if (turned < 0) {
      ptx::store_cluster16(S::query() + token * U::Q_PITCH + 16 * vec, to,
                           make_uint4(value.word[0], value.word[1], value.word[2], value.word[3]));
      continue;
    }
    float v[8], angle[8];
    widen8(value, v);
    load_angles<U::R>(rope, ptx::load4(positions + row), P, turned, angle);
#pragma unroll
    for (int j = 0; j < 8; j += 2) rotate(v[j], v[j + 1], angle[j], angle[j + 1]);
    store8(y, (row * U::H + at.head) * (U::CVECS + U::RVECS) + U::CVECS + turned, narrow8(v));
  }
}

}  // namespace queries

template <class U, class S>
__device__ __forceinline__ void head_queries(const __nv_bfloat16* joint, const __nv_bfloat16* q_gain, const __nv_bfloat16* kv_gain,
                                             float eps, const __nv_bfloat16* q_b, const __nv_bfloat16* key_up, const float* rope,
                                             const int32_t* positions, const int32_t* slots, __nv_bfloat16* cache,
                                             __nv_bfloat16* y, int M, int P, int T) {
  using namespace queries;
  const Place<U> at;
  if (threadIdx.x == 0) {
    ptx::barrier_init(S::full(), 1);
    ptx::barriers_ready();
    ptx::barrier_arrive_expect(S::full(), U::SHARE * 2 * U::Q);
  }
  __syncthreads();
  ptx::cluster_arrive();  // others may write to this CTA
  ptx::grid_dependency_launch();
  if (at.warp == U::TEAM) {
    if (at.head == 0 && at.token + at.rank < M) {
      Bf16x8 gain[U::OWN] = {};
#pragma unroll
      for (int i = 0; i < U::OWN; ++i)
        if (at.lane + 32 * i < U::CVECS) gain[i] = load8_constant(kv_gain, at.lane + 32 * i);
      ptx::grid_dependency_wait();
      mla::entry<U>(joint, gain, eps, rope, positions, slots, cache, at.token + at.rank, P, T);
      __syncwarp();
    }
    ptx::cluster_wait();
    ptx::cluster_sync();
    return;
  }
  const int latent = (at.rank * U::LATENTS + at.warp) * 16;
  Rows16<U::N> up;
  if (at.warp == 0) {
    const __nv_bfloat16* from = q_b + (int64_t(at.head) * U::RANKS + at.rank) * U::SHARE * U::Q;
    for (int row = at.lane; row < U::SHARE; row += 32)
      ptx::bulk_load(S::weights() + row * U::PITCH, from + int64_t(row) * U::Q, 2 * U::Q, S::full());
  }
  if (at.warp < U::LATENTS) up.load(key_up + (int64_t(at.head) * U::C + latent) * U::N);
  Bf16x8 gain[U::VPT] = {};
#pragma unroll
  for (int i = 0; i < U::VPT; ++i) {
    const int vec = at.warp % U::WARPS * 32 + at.lane + 32 * U::WARPS * i;
    if (vec < U::QVECS) gain[i] = load8_constant(q_gain, vec);
  }
  ptx::grid_dependency_wait();
  norm_tokens<U, S>(at, joint, gain, eps, M);
  project<U, S>(at);
  ptx::cluster_wait();
  deal<U, S>(at, rope, positions, y, M, P);
  ptx::cluster_sync();
  if (at.warp >= U::LATENTS) return;
  float sum[4] = {};
  const uint32_t tokens = tokens_at<U::Q_PITCH>(S::query());
#pragma unroll
  for (int k = 0; k < U::N / 32; ++k) {
    uint32_t b[4];
    ptx::ldmatrix4(b, tokens + 64 * k);
    multiply(sum, up.a[2 * k], b[0], b[1]);
    multiply(sum, up.a[2 * k + 1], b[2], b[3]);
  }
  gemm::store_tile(make_float4(sum[0], sum[1], sum[2], sum[3]), at.token, latent, [&](int64_t token, int row) {
    return token < M ? y + (token * U::H + at.head) * (U::C + U::R) + row : nullptr;
  });
}

template <class U, class S>
__device__ __forceinline__ void head_queries_fp8(const __nv_bfloat16* joint, const __nv_bfloat16* q_gain,
                                                 const __nv_bfloat16* kv_gain, float eps, const __nv_bfloat16* q_b,
                                                 const __nv_bfloat16* key_up, const float* rope, const int32_t* positions,
                                                 const int32_t* slots, __nv_bfloat16* cache, __nv_bfloat16* y, int M, int P, int T) {
  head_queries<U, S>(joint, q_gain, kv_gain, eps, q_b, key_up, rope, positions, slots, cache, y, M, P, T);
}

}  // namespace kd
