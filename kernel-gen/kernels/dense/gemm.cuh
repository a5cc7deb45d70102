// The product of token rows and weight rows, weights on the m16 side of the tensor core and tokens on the n8 side.
//
// K is cut into U::SEGS segments of whole blocks of 64, by K alone. A segment is summed in ascending k by one chain of mma,
// segments are added in order: so a sum has the same bits in every variant, whoever computed the segments. A CTA has
// ROWS weight rows, TOKENS tokens and GROUPS * RUN segments; the CTAs of a cluster have the segments of one tile and add them
// through distributed shared memory. Within the CTA, each group of WR x WT warps multiplies its own segments, while
// producer warps keep a ring of blocks full: the weights' first of them before the kernel in front has finished.
#pragma once

#include "kd/base.cuh"
#include "ptx/bulk.cuh"
#include "ptx/cluster.cuh"
#include "ptx/copy.cuh"
#include "ptx/ldmatrix.cuh"
#include "ptx/mma.cuh"
#include "ptx/pdl.cuh"

namespace kd {
namespace gemm {

// Rows of a slot are STEP values; its vectors of 16 bytes are permuted so that equal vectors of eight consecutive rows lie
// in different banks.
template <class U>
__device__ __forceinline__ uint32_t place(int row, int vector) {
  constexpr int VECS = U::STEP / 8;
  return row * (U::STEP * 2) + ((vector ^ (row / (8 / VECS) % VECS)) << 4);
}

template <class U>
struct Shape {
  static constexpr int ROW_BYTES = U::STEP * 2, BLOCKS = (U::K + U::STEP - 1) / U::STEP;
  static constexpr int WEIGHT_BYTES = U::ROWS * ROW_BYTES, TOKEN_BYTES = U::TOKENS * ROW_BYTES;
  static constexpr int GROUP_BYTES = WEIGHT_BYTES + TOKEN_BYTES, SLOT_BYTES = U::GROUPS * GROUP_BYTES;
  static constexpr int CONSUMERS = 32 * U::WR * U::WT * U::GROUPS;
  // The first block of segment `segment`: segments are cut at multiples of 64.
  __host__ __device__ static constexpr int first(int segment) {
    return (segment < U::SEGS ? segment * ((U::K + 63) / 64) / U::SEGS : (U::K + 63) / 64) * (64 / U::STEP);
  }
  static constexpr bool EVEN = (U::K + 63) / 64 % U::SEGS == 0 && U::GROUPS * U::RUN * U::CTAS == U::SEGS;
  // Steps of the group with most blocks.
  static constexpr int STEPS =
      (U::RUN == U::SEGS ? (U::K + 63) / 64 : (((U::K + 63) / 64 + U::SEGS - 1) / U::SEGS)) * (64 / U::STEP);
  // Blocks of a group: one segment may have one of 64 more than another.
  __device__ __forceinline__ static int blocks(int group) { return first(segment(group) + U::RUN) - first(segment(group)); }
  // The first segment of a group of this CTA.
  __device__ __forceinline__ static int segment(int group) { return (blockIdx.x * U::GROUPS + group) * U::RUN; }
};

// One producer warp of WARPS (this one is `part`): fills the slots of the ring in turn with ROWS rows, PITCH apart, of each
// group's next block. Rows from `rows` on are left as they are, for they meet in no sum that is stored; columns from K on are
// zero. Its loop has little but copies: a warp starts at most one instruction in a few cycles.
template <class U, class S, int ROWS, int PITCH, int WARPS>
__device__ __forceinline__ void produce(uint32_t ring, const __nv_bfloat16* from, int rows, int part) {
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
      const bool inside = U::K % U::STEP == 0 || At::first(At::segment(group)) * U::STEP + step * U::STEP + vector * 8 < U::K;
#pragma unroll
      for (int i = 0; i < ROUNDS; ++i) {
        const uint32_t target = to[i % PERIOD] + base + i * STRIDE * At::ROW_BYTES;
        if (!whole && (row + i * STRIDE >= rows || row + i * STRIDE >= ROWS)) continue;
        const __nv_bfloat16* address = source[group] + int64_t(i) * STRIDE * PITCH;
        if (U::K % U::STEP == 0)
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

template <class U>
using Sums = float[U::MT][U::NT][4];

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

// The sums of one segment of this warp's part of the tile, or of its RUN segments, in shared memory.
template <class U, class S>
__device__ __forceinline__ void keep(const Sums<U>& sum, int group, int row, int token) {
  const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
  for (int n = 0; n < U::NT; ++n)
#pragma unroll
    for (int m = 0; m < U::MT; ++m)
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const int at_token = token + 8 * n + 2 * t + c % 2, at_row = row + 16 * m + g + 8 * (c / 2);
        reinterpret_cast<float*>(S::ring())[(group * U::TOKENS + at_token) * U::LINE + at_row] = sum[m][n][c];
      }
}

template <class U, class S>
__device__ __forceinline__ void consume(uint32_t ring) {
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
    if (step + 1 < At::STEPS) ptx::barrier_wait(S::full() + after, after_parity);
#pragma unroll
    for (int k16 = 0; k16 < U::STEP / 16 && step < blocks; ++k16) {
      const bool last = k16 + 1 == U::STEP / 16;  // what is loaded behind the last block is not used
      const int from = (last ? after : slot) * At::SLOT_BYTES;
      own.load((k16 + 1) % 2, weights + from, tokens + from, last ? 0 : k16 + 1);
      own.multiply(k16 % 2, sum);
    }
    __syncwarp();
    if (threadIdx.x % 32 == 0) ptx::barrier_arrive(S::empty() + slot);
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
  ptx::named_barrier<At::CONSUMERS>(1);  // the sums take the place of the ring
  if constexpr (U::RUN > 1)
    keep<U, S>(total, group, row, token);
  else
    keep<U, S>(sum, group, row, token);
}

// Adds the segments of this CTA's share of the tile and passes on four rows of one token at a time; rows from N on too, so
// that whole warps call `store`.
template <class U, class S, class Store>
__device__ __forceinline__ void combine(int M, int tile, Store store) {
  constexpr int QUADS = U::ROWS / 4, PARTS = U::SEGS / U::RUN;
  const float* sums = reinterpret_cast<const float*>(S::ring());
  for (int i = blockIdx.x * U::THREADS + int(threadIdx.x); i < U::TOKENS * QUADS; i += U::CTAS * U::THREADS) {
    const int64_t token = int64_t(blockIdx.y) * U::TOKENS + i / QUADS;
    if (token >= M) continue;
    const float* mine = sums + i / QUADS * U::LINE + i % QUADS * 4;
    float4 sum;
#pragma unroll
    for (int part = 0; part < PARTS; ++part) {
      const float* here = mine + part % U::GROUPS * U::TOKENS * U::LINE;
      const float4 next = U::CTAS == 1 ? *reinterpret_cast<const float4*>(here) : ptx::load_cluster16(here, part / U::GROUPS);
      if (part == 0)
        sum = next;
      else
        sum.x += next.x, sum.y += next.y, sum.z += next.z, sum.w += next.w;
    }
    store(token, tile * U::ROWS + i % QUADS * 4, sum);
  }
}

template <class U>
__device__ __forceinline__ void sync_tile() {
  if (U::CTAS == 1)
    __syncthreads();
  else
    ptx::cluster_sync();
}

// Tile `tile` of ROWS of the N rows of `w`; the M token rows of `x` are U::PITCH apart.
template <class U, class S, class Store>
__device__ __forceinline__ void product(const __nv_bfloat16* x, const __nv_bfloat16* w, int M, int N, int tile, Store store) {
  using At = Shape<U>;
  const uint32_t ring = ptx::shared_address(S::ring());
  if (threadIdx.x < U::SLOTS) {
    ptx::barrier_init(S::full() + threadIdx.x, 32 * (U::FEEDERS + 1));
    ptx::barrier_init(S::empty() + threadIdx.x, At::CONSUMERS / 32);
  }
  __syncthreads();
  ptx::grid_dependency_launch();
  const int producer = int(threadIdx.x) - At::CONSUMERS;
  if (producer < 0) {
    consume<U, S>(ring);
  } else if (producer < 32 * U::FEEDERS) {
    const int row = tile * U::ROWS;
    produce<U, S, U::ROWS, U::K, U::FEEDERS>(ring, w + int64_t(row) * U::K, N - row, producer / 32);
  } else {
    const int token = blockIdx.y * U::TOKENS;
    ptx::grid_dependency_wait();
    produce<U, S, U::TOKENS, U::PITCH, 1>(ring + At::WEIGHT_BYTES, x + int64_t(token) * U::PITCH, M - token, 0);
  }
  sync_tile<U>();
  combine<U, S>(M, tile, store);
  if (U::CTAS > 1) ptx::cluster_sync_relaxed();  // no CTA may leave while its sums are read
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
