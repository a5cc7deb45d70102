// The value side of attention for few rows: a cluster of eight CTAs makes one head's values of eight tokens.
//
// Each CTA merges an eighth of the latent's columns, as tree_mla_merge does: of a token's leaves, those of a class (w, w + 8, ...)
// are added in order by a few lanes, then the eight classes in order. It sends the result to all eight, and each multiplies it with
// its eighth of the head's rows of W_UV, which were in shared memory before the attention had ended. Sums have the order that they
// have in tree_mla_merge and absorb_value, so results have the same bits.
#pragma once

#include "attn/tree_mla_merge.cuh"
#include "dense/split.cuh"
#include "ptx/bulk.cuh"
#include "ptx/cluster.cuh"
#include "ptx/mma.cuh"
#include "ptx/push.cuh"

namespace kd {
namespace values {

// A token's partial results: the first row of them, how far it is to those of the next leaf, and how many leaves it has. A warp
// looks up the token of its number.
struct Row {
  int64_t first, rows;
  int leaves, there;  // whether there was room for them
  float most, divisor;
};

template <class U, class S>
__device__ __forceinline__ Row& row_of(int token) {
  static_assert(sizeof(Row) <= 32, "four words of shared memory a row");
  return reinterpret_cast<Row*>(S::rows())[token];
}

// By a warp, of what does not wait for the kernel in front.
template <class U, class S>
__device__ __forceinline__ void look_up(int node, int token, const int32_t* starts, const int32_t* committed,
                                        const uint64_t* ancestors, int B, int T, int Z) {
  mla::Stream& stream = reinterpret_cast<mla::Stream*>(S::stream())[token];
  const bool found = node < T && mla::find_stream<U>(starts, committed, B, node, &stream);
  __syncwarp();
  Row row = {0, 0, 0, 0, 0.0f, __int_as_float(0x7fffffff)};
  if (found) {
    const mla::Path path = mla::Path::load(ancestors, node, node == stream.first);
    row.leaves = ::min(stream.leaves, mla::Leaf<U::BASE, U::SHORT>::at(stream.committed + path.depth()) + 1);
    row.rows = int64_t(stream.nodes) * U::H;
    row.first = stream.part + int64_t(node - stream.first) * U::H;
    // Scratch that is too small must not look like a result.
    row.there = row.first + (row.leaves - 1) * row.rows + U::H <= Z;
  }
  if (threadIdx.x % 32 == 0) row_of<U, S>(token) = row;
  __syncwarp();
}

// One leaf of a class of a token: four columns a thread, and what its weights are relative to.
struct Part {
  uint4 o;
  float base;
};

// The sums of the classes of all tokens, to S::sums(), as [token][class][column].
template <class U, class S>
__device__ __forceinline__ void add_classes(const float* part_o, const float* part_ml, int head, int rank) {
  constexpr int LANES = U::COLUMNS / 4, UNITS = 32 * U::TOKENS / LANES, PAIRS = U::TOKENS * U::CLASSES;
  constexpr int ROUNDS = (PAIRS + UNITS - 1) / UNITS;
  const int lane = threadIdx.x % LANES, unit = threadIdx.x / LANES;
  const auto token = [&](int round) { return (unit + round * UNITS) / U::CLASSES; };
  const auto first = [&](int round) { return (unit + round * UNITS) % U::CLASSES; };
  Part part[2][ROUNDS];
  float4 sum[ROUNDS] = {};
  int leaves[ROUNDS], most = 0;
#pragma unroll
  for (int round = 0; round < ROUNDS; ++round) {
    const bool live = unit + round * UNITS < PAIRS && row_of<U, S>(token(round)).there;
    leaves[round] = live ? row_of<U, S>(token(round)).leaves : 0;
    most = ::max(most, leaves[round]);
  }
  const auto load = [&](int step, Part (&to)[ROUNDS]) {
#pragma unroll
    for (int round = 0; round < ROUNDS; ++round) {
      const int leaf = first(round) + step * U::CLASSES;
      if (leaf >= leaves[round]) continue;
      const Row& row = row_of<U, S>(token(round));
      const int64_t at = row.first + head + leaf * row.rows;
      to[round].base = ptx::load4f(part_ml + 2 * at);
      to[round].o = ptx::load16(part_o + at * U::C + rank * U::COLUMNS + 4 * lane);
    }
  };
  const auto add = [&](int step, const Part (&from)[ROUNDS]) {
#pragma unroll
    for (int round = 0; round < ROUNDS; ++round) {
      if (first(round) + step * U::CLASSES >= leaves[round]) continue;
      const float w = ptx::exp2_fast(from[round].base - row_of<U, S>(token(round)).most);
      const uint4& own = from[round].o;
      sum[round].x = fmaf(w, __uint_as_float(own.x), sum[round].x), sum[round].y = fmaf(w, __uint_as_float(own.y), sum[round].y);
      sum[round].z = fmaf(w, __uint_as_float(own.z), sum[round].z), sum[round].w = fmaf(w, __uint_as_float(own.w), sum[round].w);
    }
  };
  load(0, part[0]);
  load(1, part[1]);
  const int own = threadIdx.x / 32;
  Row& row = row_of<U, S>(own);
  if (row.there && row.leaves > 0) {
    const float2 weights = mla::weigh_leaves(part_ml + (row.first + head) * 2, row.rows, row.leaves);
    if (threadIdx.x % 32 == 0) row.most = weights.x, row.divisor = 1.0f / weights.y;
  }
  __syncthreads();
  for (int step = 0; step * U::CLASSES < most; step += 2) {
    add(step, part[0]);
    load(step + 2, part[0]);
    add(step + 1, part[1]);
    load(step + 3, part[1]);
  }
#pragma unroll
  for (int round = 0; round < ROUNDS; ++round)
    if (unit + round * UNITS < PAIRS)
      *reinterpret_cast<float4*>(S::sums() + (unit + round * UNITS) * U::COLUMNS + 4 * lane) = sum[round];
  __syncthreads();
}

// Adds the classes, rounds, and sends this CTA's columns to every CTA of the cluster: to its S::mixed().
template <class U, class S>
__device__ __forceinline__ void deal(int rank, int live) {
  constexpr int QUADS = U::COLUMNS / 4;
  for (int i = threadIdx.x; i < live * QUADS; i += 32 * U::TOKENS) {
    const int token = i / QUADS, column = i % QUADS * 4;
    const float* from = S::sums() + token * U::CLASSES * U::COLUMNS + column;
    float4 all = *reinterpret_cast<const float4*>(from);
#pragma unroll
    for (int other = 1; other < U::CLASSES; ++other) {
      const float4 next = *reinterpret_cast<const float4*>(from + other * U::COLUMNS);
      all.x += next.x, all.y += next.y, all.z += next.z, all.w += next.w;
    }
    const Row& row = row_of<U, S>(token);
    uint2 packed = {0, 0};  // a padding row is zero
    if (row.leaves > 0)
      packed = {gemm::pack(all.x * row.divisor, all.y * row.divisor), gemm::pack(all.z * row.divisor, all.w * row.divisor)};
#pragma unroll
    for (int to = 0; to < U::RANKS; ++to)
      ptx::store_cluster8(S::mixed() + token * U::PITCH + 2 * (rank * U::COLUMNS + column), to, packed);
  }
}

// The product of this CTA's rows of W_UV, by a warp.
template <class U, class S, class At>
__device__ __forceinline__ void multiply(int64_t token, At at) {
  const int lane = threadIdx.x % 32;
  // Rows that a tile has too many are others' once more; their sums are not stored.
  const uint32_t rows = ptx::shared_address(S::weights()) + ::min(lane % 16, U::SHARE - 1) * U::PITCH + lane / 16 * 16;
  const uint32_t tokens = ptx::shared_address(S::mixed()) + lane % 8 * U::PITCH + lane / 8 * 16;
  float sum[4] = {};
  ptx::barrier_wait(S::full(), 0);
#pragma unroll 4
  for (int k = 0; k < U::C; k += 32) {
    uint32_t a[2][4], b[4];
    ptx::ldmatrix4(a[0], rows + 2 * k);
    ptx::ldmatrix4(a[1], rows + 2 * k + 32);
    ptx::ldmatrix4(b, tokens + 2 * k);
    ptx::mma_16816_bf16(sum, a[0][0], a[0][1], a[0][2], a[0][3], b[0], b[1]);
    ptx::mma_16816_bf16(sum, a[1][0], a[1][1], a[1][2], a[1][3], b[2], b[3]);
  }
  gemm::store_tile(make_float4(sum[0], sum[1], sum[2], sum[3]), token, 0, at);
}

}  // namespace values

template <class U, class S>
__device__ __forceinline__ void head_values(const float* part_o, const float* part_ml, const int32_t* starts,
                                            const int32_t* committed, const uint64_t* ancestors, const __nv_bfloat16* w,
                                            int32_t* queue, __nv_bfloat16* y, int Z, int B, int T) {
  using namespace values;
  const int rank = blockIdx.x, head = blockIdx.z, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int64_t token = int64_t(blockIdx.y) * U::TOKENS;
  if (threadIdx.x == 0) {
    ptx::barrier_init(S::full(), 1);
    ptx::barriers_ready();
    ptx::barrier_arrive_expect(S::full(), U::SHARE * 2 * U::C);
  }
  __syncthreads();
  ptx::cluster_arrive();  // others may write to this CTA
  ptx::grid_dependency_launch();
  if (warp == 0 && lane < U::SHARE)
    ptx::bulk_load(S::weights() + lane * U::PITCH, w + ((int64_t(head) * U::RANKS + rank) * U::SHARE + lane) * U::C, 2 * U::C,
                   S::full());
  look_up<U, S>(int(token) + warp, warp, starts, committed, ancestors, B, T, Z);
  __syncthreads();
  ptx::grid_dependency_wait();
  if (rank == 0 && head == 0 && token == 0 && threadIdx.x == 0) *queue = 0;
  add_classes<U, S>(part_o, part_ml, head, rank);
  ptx::cluster_wait();
  deal<U, S>(rank, int(::min(int64_t(U::TOKENS), T - token)));
  ptx::cluster_sync();
  if (warp > 0) return;
  multiply<U, S>(token, [&](int64_t token, int row) {
    return token < T && row < U::SHARE ? y + (token * U::H + head) * U::N + rank * U::SHARE + row : nullptr;
  });
}

}  // namespace kd
