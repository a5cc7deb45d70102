// The product of token rows and weight rows, weights on the m16 side of the tensor core and tokens on the n8 side.
//
// K is cut into U::SEGS segments of whole blocks of 64, by K alone. A segment is summed in ascending k by one chain of mma,
// segments are added in order: so a sum has the same bits in every variant, whoever computed the segments. A CTA has
// ROWS weight rows, TOKENS tokens and GROUPS * RUN segments; the CTAs of a cluster have the segments of one tile and add them
// through distributed shared memory. Within the CTA, each group of WR x WT warps multiplies its own segments, while
// producer warps keep a ring of blocks full: the weights' first of them before the kernel in front has finished.
#pragma once

#include "dense/shape.cuh"
#include "dense/shared.cuh"
#include "dense/split.cuh"
#include "ptx/bulk.cuh"
#include "ptx/cluster.cuh"
#include "ptx/copy.cuh"
#include "ptx/ldmatrix.cuh"
#include "ptx/mma.cuh"
#include "ptx/pdl.cuh"

namespace kd {
namespace gemm {

// One producer warp of WARPS (this one is `part`): fills the slots of the ring in turn with ROWS rows, PITCH apart, of each
// group's next block. Rows from `rows` on are left as they are, for they meet in no sum that is stored; columns from K on are
// zero. Its loop has little but copies: a warp starts at most one instruction in a few cycles. What the warps copy in one round lies
// `round` behind the round before.
template <class U, class S, int ROWS, int PITCH, int WARPS>
__device__ __forceinline__ void produce(uint32_t ring, const __nv_bfloat16* from, int rows, int part,
                                        int64_t round = int64_t(32 / (U::STEP / 8) * WARPS) * PITCH) {
  using At = Shape<U>;
  constexpr int VECS = U::STEP / 8, LINES = 32 / VECS, STRIDE = LINES * WARPS, ROUNDS = (ROWS + STRIDE - 1) / STRIDE;
  constexpr int PERIOD = STRIDE % 8 == 0 ? 1 : 2;  // after so many rounds the vectors lie in the same banks again
  static_assert(STRIDE * PERIOD % 8 == 0 && ROWS % LINES == 0, "whole warps, and one, two or four of them");
  const int lane = threadIdx.x % 32, vector = lane % VECS, row = part * LINES + lane / VECS;
  const bool whole = rows >= ROWS && ROWS % STRIDE == 0;
  uint32_t to[PERIOD];
#pragma unroll
  for (int i = 0; i < PERIOD; ++i) to[i] = ring + place<U>(row + i * STRIDE, vector) - i * STRIDE * At::ROW_BYTES;
  const __nv_bfloat16* source[U::GROUPS];
#pragma unroll
  for (int group = 0; group < U::GROUPS; ++group)
    source[group] = from + int64_t(row) * PITCH + At::first(At::segment(group)) * U::STEP + vector * 8;
  int slot = 0, parity = 1;
#pragma unroll 1
  for (int step = 0; step < At::STEPS; ++step) {
    ptx::barrier_wait(S::empty() + slot, parity);
#pragma unroll
    for (int group = 0; group < U::GROUPS; ++group) {
      if (!At::EVEN && step >= At::blocks(group)) continue;
      const uint32_t base = slot * At::SLOT_BYTES + group * At::GROUP_BYTES;
      const bool inside = At::WHOLE_BLOCKS || At::first(At::segment(group)) * U::STEP + step * U::STEP + vector * 8 < U::K;
#pragma unroll
      for (int i = 0; i < ROUNDS; ++i) {
        const uint32_t target = to[i % PERIOD] + base + i * STRIDE * At::ROW_BYTES;
        if (!whole && (row + i * STRIDE >= rows || row + i * STRIDE >= ROWS)) continue;
        const __nv_bfloat16* address = source[group] + i * round;
        if (At::WHOLE_BLOCKS)
          ptx::copy16_ahead(target, address);
        else
          ptx::copy16_ahead(target, address, inside);
      }
      source[group] += U::STEP;
    }
    ptx::barrier_arrive_copies(S::full() + slot);
    if (++slot == U::SLOTS) slot = 0, parity ^= 1;
  }
}

// A warp's operands for 16 values of k: these and the next.
template <class U>
struct Operands {
  uint32_t a[2][U::MT][4], b[2][U::NT][2];

  __device__ __forceinline__ void load(int into, uint32_t weights, uint32_t tokens, int k16) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int m = 0; m < U::MT; ++m)
      ptx::ldmatrix4(a[into][m], weights + m * 16 * Shape<U>::ROW_BYTES + place<U>(lane % 16, 2 * k16 + lane / 16));
#pragma unroll
    for (int n = 0; n < U::NT; n += 2) {
      const uint32_t from = tokens + n * 8 * Shape<U>::ROW_BYTES;
      if (n + 1 < U::NT) {
        uint32_t both[4];
        ptx::ldmatrix4(both, from + place<U>(lane / 16 * 8 + lane % 8, 2 * k16 + lane / 8 % 2));
        b[into][n][0] = both[0], b[into][n][1] = both[1], b[into][n + 1][0] = both[2], b[into][n + 1][1] = both[3];
      } else {
        ptx::ldmatrix2(b[into][n], from + place<U>(lane % 8, 2 * k16 + lane / 8 % 2));
      }
    }
  }

  __device__ __forceinline__ void multiply(int from, Sums<U>& sum) const {
#pragma unroll
    for (int n = 0; n < U::NT; ++n)
#pragma unroll
      for (int m = 0; m < U::MT; ++m)
        ptx::mma_16816_bf16(sum[m][n], a[from][m][0], a[from][m][1], a[from][m][2], a[from][m][3],
                            b[from][n][0], b[from][n][1]);
  }
};

// A consumer warp; `end` gets its sums, and the group, row and token in the tile that they are of. With LATE it gives a slot
// back and waits for the next in front of the last k16 of a step, else behind and in front of the step: which is faster
// differs from tile to tile.
template <class U, class S, class End>
__device__ __forceinline__ void consume(uint32_t ring, End end) {
  using At = Shape<U>;
  const int warp = threadIdx.x / 32, group = warp / (U::WR * U::WT);
  const int row = warp % U::WR * 16 * U::MT, token = warp / U::WR % U::WT * 8 * U::NT;
  const uint32_t weights = ring + group * At::GROUP_BYTES + row * At::ROW_BYTES;
  const uint32_t tokens = ring + group * At::GROUP_BYTES + At::WEIGHT_BYTES + token * At::ROW_BYTES;
  int segment = 0;
  Sums<U> sum = {}, total;
  Operands<U> own;
  ptx::barrier_wait(S::full(), 0);
  own.load(0, weights, tokens, 0);
  const int blocks = At::EVEN ? At::STEPS : At::blocks(group);
  int slot = 0, parity = 0;
#pragma unroll 1
  for (int step = 0; step < At::STEPS; ++step) {
    const int after = slot + 1 == U::SLOTS ? 0 : slot + 1, after_parity = after == 0 ? parity ^ 1 : parity;
    const auto release = [&] { ptx::barrier_arrive_warp(S::empty() + slot, threadIdx.x % 32); };
#pragma unroll
    for (int k16 = 0; k16 < U::STEP / 16; ++k16) {
      const bool last = k16 + 1 == U::STEP / 16;  // what is loaded behind the last block is not used
      if (U::LATE && last) release();  // all of this slot is in registers
      if (step + 1 < At::STEPS && (U::LATE ? last : k16 == 0)) ptx::barrier_wait(S::full() + after, after_parity);
      if (!At::EVEN && step >= blocks) continue;
      const int from = (last ? after : slot) * At::SLOT_BYTES;
      own.load((k16 + 1) % 2, weights + from, tokens + from, last ? 0 : k16 + 1);
      own.multiply(k16 % 2, sum);
    }
    if (!U::LATE) release();
    slot = after, parity = after_parity;
    if (U::RUN > 1 && step + 1 == At::first(segment + 1)) {
#pragma unroll
      for (int m = 0; m < U::MT; ++m)
#pragma unroll
        for (int n = 0; n < U::NT; ++n)
#pragma unroll
          for (int c = 0; c < 4; ++c) {
            total[m][n][c] = segment == 0 ? sum[m][n][c] : total[m][n][c] + sum[m][n][c];
            sum[m][n][c] = 0.0f;
          }
      ++segment;
    }
  }
  if constexpr (U::RUN > 1)
    end(total, group, row, token);
  else
    end(sum, group, row, token);
}

// The sums of rows 4 * quad .. of one token of the tile: its segments, added in order.
template <class U, class S>
__device__ __forceinline__ float4 sum4(int token, int quad) {
  constexpr int PARTS = U::SEGS / U::RUN;
  const float* own = reinterpret_cast<const float*>(S::ring()) + token * U::LINE + quad * 4;
  float4 sum;
#pragma unroll
  for (int part = 0; part < PARTS; ++part) {
    const float* here = own + part % U::GROUPS * U::TOKENS * U::LINE;
    const float4 next = U::CTAS == 1 ? *reinterpret_cast<const float4*>(here) : ptx::load_cluster16(here, part / U::GROUPS);
    if (part == 0)
      sum = next;
    else
      sum.x += next.x, sum.y += next.y, sum.z += next.z, sum.w += next.w;
  }
  return sum;
}

// Adds the segments of this CTA's share of the tile and passes on four rows of one token at a time.
template <class U, class S, class Store>
__device__ __forceinline__ void combine(int M, int tile, Store store) {
  constexpr int QUADS = U::ROWS / 4;
  for (int i = blockIdx.x * U::THREADS + int(threadIdx.x); i < U::TOKENS * QUADS; i += U::CTAS * U::THREADS) {
    const int64_t token = int64_t(blockIdx.y) * U::TOKENS + i / QUADS;
    if (token < M) store(token, tile * U::ROWS + i % QUADS * 4, sum4<U, S>(i / QUADS, i % QUADS));
  }
}

template <class U>
__device__ __forceinline__ void sync_tile() {
  if (U::CTAS == 1)
    __syncthreads();
  else
    ptx::cluster_sync();
}

// The sums of tile `tile` of ROWS of the N rows of `w`, with producers: each consumer warp calls `end` with its own. The M token
// rows of `x` are U::PITCH apart.
template <class U, class S, class End>
__device__ __forceinline__ void stream(const __nv_bfloat16* x, const __nv_bfloat16* w, int M, int N, int tile, End end) {
  using At = Shape<U>;
  const uint32_t ring = ptx::shared_address(S::ring());
  const int row = tile * U::ROWS, token = blockIdx.y * U::TOKENS;
  if (threadIdx.x < U::SLOTS) {
    ptx::barrier_init(S::full() + threadIdx.x, 32 * (U::FEEDERS + 1));
    ptx::barrier_init(S::empty() + threadIdx.x, ptx::warp_arrivals(At::CONSUMERS / 32));
  }
  __syncthreads();
  ptx::grid_dependency_launch();
  const int producer = int(threadIdx.x) - At::CONSUMERS;
  if (producer < 0) {
    consume<U, S>(ring, end);
  } else if (producer < 32 * U::FEEDERS) {
    produce<U, S, U::ROWS, U::K, U::FEEDERS>(ring, w + int64_t(row) * U::K, N - row, producer / 32);
  } else {
    ptx::grid_dependency_wait();
    produce<U, S, U::TOKENS, U::PITCH, 1>(ring + At::WEIGHT_BYTES, x + int64_t(token) * U::PITCH, M - token, 0);
  }
}

// The sums of tile `tile` in shared memory, for `sum4`.
template <class U, class S>
__device__ __forceinline__ void sum_tile(const __nv_bfloat16* x, const __nv_bfloat16* w, int M, int N, int tile) {
  using At = Shape<U>;
  if constexpr (U::FEEDERS == 0) {
    const uint32_t ring = ptx::shared_address(S::ring());
    const int row = tile * U::ROWS, token = blockIdx.y * U::TOKENS, first = At::first(At::segment(0));
    const __nv_bfloat16 *weights = w + int64_t(row) * U::K, *tokens = x + int64_t(token) * U::PITCH;
    multiply_shared<U, S>(ring, Copies<U, U::ROWS, U::K>(ring, weights, N - row, first),
                          Copies<U, U::TOKENS, U::PITCH>(ring + At::WEIGHT_BYTES, tokens, M - token, first),
                          [] { ptx::grid_dependency_wait(); });
    // Not before: CTAs of the kernel behind would take the second place on some SMs, and pairs of this one share others.
    ptx::grid_dependency_launch();
  } else {
    stream<U, S>(x, w, M, N, tile, [](const Sums<U>& sum, int group, int row, int token) {
      ptx::named_barrier<At::CONSUMERS>(1);  // the sums take the place of the ring
      keep<U, S>(sum, group, row, token);
    });
  }
  sync_tile<U>();
}

// No CTA may leave while its sums are read.
template <class U>
__device__ __forceinline__ void leave_tile() {
  if (U::CTAS > 1) ptx::cluster_sync_relaxed();
}

// The product of tile `tile`, whose sums meet in shared memory; `store` gets four of one token at a time.
template <class U, class S, class Store>
__device__ __forceinline__ void product(const __nv_bfloat16* x, const __nv_bfloat16* w, int M, int N, int tile, Store store) {
  sum_tile<U, S>(x, w, M, N, tile);
  combine<U, S>(M, tile, store);
  leave_tile<U>();
}

// Rounds four sums once and stores them.
__device__ __forceinline__ void store4(__nv_bfloat16* to, float4 sum) {
  const __nv_bfloat162 low = __floats2bfloat162_rn(sum.x, sum.y), high = __floats2bfloat162_rn(sum.z, sum.w);
  uint2 packed;
  packed.x = uint32_t(__bfloat16_as_ushort(low.y)) << 16 | __bfloat16_as_ushort(low.x);
  packed.y = uint32_t(__bfloat16_as_ushort(high.y)) << 16 | __bfloat16_as_ushort(high.x);
  *reinterpret_cast<uint2*>(to) = packed;
}

}  // namespace gemm
}  // namespace kd
