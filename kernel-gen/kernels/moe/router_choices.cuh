// What is left of the router once a CTA's sums are in shared memory, `sums[token][row]`, or in registers: scores, added from those of
// all CTAs of the cluster, and the choice, by who waits for the scores of other expert blocks or by the last of them to arrive.
#pragma once

#include "kd/arrive.cuh"
#include "moe/top_experts.cuh"
#include "ptx/await.cuh"
#include "ptx/cluster.cuh"
#include "ptx/copy.cuh"
#include "ptx/exchange.cuh"
#include "ptx/sums.cuh"

namespace kd {
namespace route {

__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

// Of a NaN too no other bit.
__device__ __forceinline__ float negated(float x) { return __uint_as_float(__float_as_uint(x) ^ 0x80000000u); }

struct Choices {
  const float* bias;
  const int32_t* slots;
  int32_t groups, top_groups, normalize;
  float scaling;
  int32_t* arrived;
  float* scores;
  int32_t* ids;
  float* weights;

  // What the choice needs besides scores is at hand when it begins; these copies are in the next group.
  template <class U, class S>
  __device__ __forceinline__ void prepare() const {
    for (int i = 4 * threadIdx.x; i < U::E; i += 128 * U::WARPS) ptx::copy16(ptx::shared_address(S::biases() + i), bias + i);
  }

  // With PUSH: where the sums of CTA `rank` for a token of this CTA's share arrive.
  template <class U, class S>
  __device__ __forceinline__ static float* place(int rank, int token) {
    return S::parts() + (rank * U::SHARE + token) * U::ROWS;
  }

  // Makes room for them. Between this and `push` all CTAs of the cluster have to start, while the products are made.
  template <class U, class S>
  __device__ __forceinline__ static void expect() {
    if (threadIdx.x == 0) {
      ptx::barrier_init(S::ready(), 1);
      ptx::barriers_ready();
    }
    // Racecheck holds the same thread's next access against it.
    if (ptx::EVERY_LANE_ARRIVES) __syncthreads();
    if (threadIdx.x == 0) ptx::barrier_arrive_expect(S::ready(), U::TOKENS * U::ROWS * 4);
    __syncthreads();
    ptx::cluster_arrive();
  }

  // With DIRECT: where the sums of CTA `rank` for a pair of tokens of this CTA's share arrive, as the threads hold them: for each
  // 16 experts eight times four, two tokens of one expert, then of the eighth behind it.
  template <class U, class S>
  __device__ __forceinline__ static float* unit(int rank, int pair, int of) {
    return S::parts() + ((rank * (U::SHARE / 2) + pair) * (U::ROWS / 2) + of) * 4;
  }

  // To each CTA what this warp's lanes hold of its share, 16 experts from `row` on; tokens from eight times BEGIN on first.
  template <class U, class S, int BEGIN>
  __device__ __forceinline__ static void push_from(const float (&sum)[U::NT][4], int row) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int i = 0; i < U::NT; ++i) {
      const int n = (BEGIN + i) % U::NT, pair = 4 * n + t;
      ptx::send16(unit<U, S>(blockIdx.x, pair % (U::SHARE / 2), row / 2 + g),
                  make_float4(sum[n][0], sum[n][1], sum[n][2], sum[n][3]), S::ready(), pair / (U::SHARE / 2));
    }
  }

  // The same once all CTAs have started. Half of them begin in the middle, so that not all send to the same one.
  template <class U, class S>
  __device__ __forceinline__ static void push_held(const float (&sum)[U::NT][4], int row) {
    static_assert(U::SHARE % 2 == 0, "pairs of tokens");
    ptx::cluster_wait();
    if (blockIdx.x < U::RANKS / 2)
      push_from<U, S, 0>(sum, row);
    else
      push_from<U, S, U::NT / 2>(sum, row);
  }

  // Scores of the cluster's experts for this CTA's share of what was sent so, to where they are awaited: negative, so that none is
  // zero.
  template <class U, class S>
  __device__ __forceinline__ void score_held(int64_t token, int expert, int M) const {
    constexpr int UNITS = U::ROWS / 2;
    for (int i = threadIdx.x; i < U::SHARE / 2 * UNITS; i += 32 * U::WARPS) {
      const int pair = i / UNITS, of = i % UNITS, row = expert + of / 8 * 16 + of % 8;
      const int64_t first = token + blockIdx.x * U::SHARE + 2 * pair;
      float4 part[U::RANKS];
#pragma unroll
      for (int rank = 0; rank < U::RANKS; ++rank) part[rank] = *reinterpret_cast<const float4*>(unit<U, S>(rank, pair, of));
#pragma unroll
      for (int rank = 1; rank < U::RANKS; ++rank)
        part[0].x += part[rank].x, part[0].y += part[rank].y, part[0].z += part[rank].z, part[0].w += part[rank].w;
      float* to = reinterpret_cast<float*>(arrived) + first * U::E + row;
      if (first < M) ptx::store_device(to, negated(sigmoid(part[0].x))), ptx::store_device(to + 8, negated(sigmoid(part[0].z)));
      if (first + 1 < M) ptx::store_device(to + U::E, negated(sigmoid(part[0].y))), ptx::store_device(to + U::E + 8, negated(sigmoid(part[0].w)));
    }
  }

  // To each CTA this one's sums of its share, and waits for what the others send. Nobody leaves before all has come, so that the cluster
  // needs no barrier.
  template <class U, class S>
  __device__ __forceinline__ static void push(const float* sums) {
    constexpr int QUADS = U::ROWS / 4;
    __syncthreads();
    ptx::cluster_wait();
    for (int i = threadIdx.x; i < U::TOKENS * QUADS; i += 32 * U::WARPS) {
      // Each CTA begins with itself: if all began with the first, they would wait for what that one can take.
      const int token = (i / QUADS + int(blockIdx.x) * U::SHARE) % U::TOKENS, quad = i % QUADS;
      ptx::send16(place<U, S>(blockIdx.x, token % U::SHARE) + quad * 4,
                  *reinterpret_cast<const float4*>(sums + token * U::LINE + quad * 4), S::ready(), token / U::SHARE);
    }
    ptx::barrier_wait_cluster(S::ready(), 0);
  }

  // Scores of the cluster's experts for this CTA's share of its tokens, as few a thread as there are threads for.
  template <class U, class S>
  __device__ __forceinline__ void score(const float* sums, int64_t token, int expert, int M) const {
    constexpr int EACH = U::SHARE * U::ROWS, THREADS = 32 * U::WARPS, WIDE = !U::PUSH || EACH > 2 * THREADS ? 4 : EACH > THREADS ? 2 : 1;
    struct alignas(4 * WIDE) Few {
      float value[WIDE];
    };
    for (int i = threadIdx.x; i < EACH / WIDE; i += THREADS) {
      const int own = i / (U::ROWS / WIDE), row = i % (U::ROWS / WIDE) * WIDE, of = blockIdx.x * U::SHARE + own;
      if (token + of >= M || expert + row >= U::E) continue;
      Few part[U::RANKS];
#pragma unroll
      for (int rank = 0; rank < U::RANKS; ++rank) {
        const float* from = U::PUSH ? place<U, S>(rank, own) + row : sums + of * U::LINE + row;
        if constexpr (U::PUSH || U::RANKS == 1) {
          part[rank] = *reinterpret_cast<const Few*>(from);
        } else {
          const float4 four = ptx::load_cluster16(from, rank);
          part[rank] = {four.x, four.y, four.z, four.w};
        }
      }
#pragma unroll
      for (int rank = 1; rank < U::RANKS; ++rank)
#pragma unroll
        for (int c = 0; c < WIDE; ++c) part[0].value[c] += part[rank].value[c];
#pragma unroll
      for (int c = 0; c < WIDE; ++c) part[0].value[c] = sigmoid(part[0].value[c]);
      if constexpr (U::CHOOSERS > 0) {
        float* to = reinterpret_cast<float*>(arrived) + (token + of) * U::E + expert + row;
#pragma unroll
        for (int c = 0; c < WIDE; ++c) part[0].value[c] = negated(part[0].value[c]);
        ptx::store_device(to, part[0].value);
      } else {
        *reinterpret_cast<Few*>(scores + (token + of) * U::E + expert + row) = part[0];
      }
    }
  }

  // The same where the first CHOOSERS of the expert blocks choose, each for a part of the share. A chooser waits for each score of its
  // token, which needs neither a counter nor a fence, and leaves zeros behind; the other CTAs make room for the next launch. The host
  // launches this only where the device holds all clusters of the launch at once: CUDA promises no order in which CTAs start.
  template <class U, class S>
  __device__ __forceinline__ void decide_waiting(const float* sums, float* space, int64_t token, int expert, int M) const {
    constexpr int CHOOSERS = U::CHOOSERS < U::BLOCKS ? U::CHOOSERS : U::BLOCKS, OWN = (U::SHARE + CHOOSERS - 1) / CHOOSERS;
    static_assert(OWN <= U::WARPS, "a warp a token");
    const int warp = threadIdx.x / 32, of = blockIdx.y + warp * CHOOSERS;
    const int64_t row = token + blockIdx.x * U::SHARE + of;
    const bool mine = blockIdx.y < CHOOSERS && of < U::SHARE && row < M;
    const int32_t slot = mine ? ptx::load4(slots + row) : -1;
    if constexpr (U::DIRECT) {
      if (warp >= U::ROWS / 16) ptx::cluster_wait();  // others have, before they sent
      __syncthreads();  // the biases are there, and `space` is free once all of this CTA have multiplied
      ptx::barrier_wait_cluster(S::ready(), 0);
      score_held<U, S>(token, expert, M);
    } else {
      push<U, S>(sums);
      score<U, S>(sums, token, expert, M);
      __syncthreads();  // nobody reads `sums`, where `space` is
    }
    if (!mine) return;
    const int lane = threadIdx.x % 32;
    uint4 score[U::QUADS];
    bool missing;
    do {
      missing = false;
#pragma unroll
      for (int i = 0; i < U::QUADS; ++i) {
        const int id = 128 * i + 4 * lane;
        if (id < U::E) {
          const float4 v = ptx::load_device16f(reinterpret_cast<const float*>(arrived) + row * U::E + id);
          score[i] = make_uint4(__float_as_uint(v.x), __float_as_uint(v.y), __float_as_uint(v.z), __float_as_uint(v.w));
          missing |= score[i].x == 0 || score[i].y == 0 || score[i].z == 0 || score[i].w == 0;
        }
      }
    } while (__any_sync(0xffffffffu, missing));
#pragma unroll
    for (int i = 0; i < U::QUADS; ++i) {
      const int id = 128 * i + 4 * lane;
      score[i].x ^= 0x80000000u, score[i].y ^= 0x80000000u, score[i].z ^= 0x80000000u, score[i].w ^= 0x80000000u;
      if (id >= U::E) continue;
      *reinterpret_cast<uint4*>(arrived + row * U::E + id) = make_uint4(0, 0, 0, 0);
      *reinterpret_cast<uint4*>(scores + row * U::E + id) = score[i];
    }
    __syncwarp();
    if (slot >= 0)
      choose<U>(scores + row * U::E, [&](int i) { return score[i]; }, S::biases(), groups, top_groups, normalize != 0, scaling,
                space + warp * (U::E + 64), ids + row * U::T, weights + row * U::T);
    else if (lane < U::T)
      ids[row * U::T + lane] = -1, weights[row * U::T + lane] = 0.0f;
  }

  // Of tokens from `token` and experts from `expert` on. `space`, shared memory, has E + 64 floats for each warp. By all threads, whose
  // sums need not be visible to each other yet.
  template <class U, class S>
  __device__ __forceinline__ void decide(const float* sums, float* space, int64_t token, int expert, int M) const {
    if constexpr (U::CHOOSERS > 0) return decide_waiting<U, S>(sums, space, token, expert, M);
    constexpr int ROUNDS = (U::SHARE + U::WARPS - 1) / U::WARPS;
    const int warp = threadIdx.x / 32;
    const int64_t first = token + blockIdx.x * U::SHARE;
    int32_t slot[ROUNDS];
#pragma unroll
    for (int round = 0; round < ROUNDS; ++round) {
      const int64_t row = first + warp + round * U::WARPS;
      slot[round] = row < M ? ptx::load4(slots + row) : -1;
    }
    if constexpr (U::PUSH)
      push<U, S>(sums);
    else if (U::RANKS > 1)
      ptx::cluster_sync();
    else
      __syncthreads();
    score<U, S>(sums, token, expert, M);
    if (U::RANKS > 1 && !U::PUSH) ptx::cluster_arrive();
    const bool last = first < M && arrive_last(arrived + first, U::BLOCKS, S::flag());
    if (U::RANKS > 1 && !U::PUSH) ptx::cluster_wait();  // no CTA may leave, or use its shared memory anew, while its sums are read
    if (!last) return;
    space += warp * (U::E + 64);
#pragma unroll 1
    for (int round = 0; round < ROUNDS; ++round) {
      const int64_t row = first + warp + round * U::WARPS;
      if (row >= first + U::SHARE || row >= M) break;
      if (slot[round] >= 0)
        choose<U>(scores + row * U::E, Stored{scores + row * U::E}, S::biases(), groups, top_groups, normalize != 0, scaling, space,
                  ids + row * U::T, weights + row * U::T);
      else if (threadIdx.x % 32 < U::T)
        ids[row * U::T + threadIdx.x % 32] = -1, weights[row * U::T + threadIdx.x % 32] = 0.0f;
    }
  }
};

}  // namespace route
}  // namespace kd
