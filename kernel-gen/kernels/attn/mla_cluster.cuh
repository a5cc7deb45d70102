// What a cluster of two or four CTAs does with blocks of keys for a tile of 8 or 16 rows, so that nodes of a tree share
// one pass over the context. As in a narrow tile rows are the n8 side of the products.
//
// Each CTA has some quarters of every entry: the columns of as many quarters of the scores, which are also those that it mixes.
// So SMs share a leaf, have more of its keys on their way than one could hold, and keep the tile's sums in few registers. They
// send each other their parts of the scores once a block, into shared memory of the receiver, where a barrier counts the bytes:
// that waits for nothing else, while a barrier of the cluster would wait for copies, too.
#pragma once

#include "attn/mla_blocks.cuh"
#include "ptx/cluster.cuh"
#include "ptx/exchange.cuh"
#include "ptx/ldmatrix.cuh"
#include "ptx/mma.cuh"

namespace kd {
namespace mla {

// Each warp scores one step of a block for its group's rows and weighs it, and mixes some of the columns over all steps and rows.
// A lane's scores and sums are those of rows 2t and 2t + 1 of each eight.
template <class U, class S>
struct Shared {
  using Blocks = mla::Blocks<U, S>;
  using D = Division<U>;
  using Scores = float[D::TILES][4];  // by eight rows: of keys g, g and g + 8, g + 8

  const int rank;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int own = warp % D::STEPS, group = warp / D::STEPS;
  uint32_t query[D::TILES][D::QUARTERS][Quarter<U>::STEPS][2];
  float sum[U::NT][D::MIXED][4];
  float base[U::NT][2];       // of all rows: behind the block that was mixed last
  float own_base[D::TILES][2];  // of the rows that this warp weighs
  float total;  // of row g of the eight rows that are this warp's number

  __device__ __forceinline__ explicit Shared(int rank) : rank(rank) {}

  // Counts what arrives of a block's scores in exchange `hop`; two blocks are kept.
  __device__ __forceinline__ static uint64_t* arrived(int block, int hop) { return S::arrived() + (block & 1) * D::HOPS + hop; }
  __device__ __forceinline__ static void expect(int block, int hop) {
    ptx::barrier_arrive_expect(arrived(block, hop), 8 * D::TILES * 32 * sizeof(float4));
  }
  // By one thread.
  __device__ __forceinline__ static void prepare(const ptx::TensorMap& entries) {
    ptx::prefetch(entries);
    for (int i = 0; i < 2 * D::HOPS; ++i) ptx::barrier_init(S::arrived() + i, 1);
    for (int block = 0; block < 2; ++block) ptx::barrier_init(Blocks::arrived(block), 8);
    ptx::barriers_ready();
    for (int i = 0; i < 2 * D::HOPS; ++i) expect(i / D::HOPS, i % D::HOPS);
  }

  __device__ __forceinline__ void take_queries(int block) {
#pragma unroll
    for (int i = 0; i < D::TILES; ++i) {
      const int n = group * D::TILES + i;
      const uint32_t from = Blocks::at(block, n / 2) + D::vector(n % 2 * 8 + lane % 8, lane / 8 % 2);
#pragma unroll
      for (int j = 0; j < D::QUARTERS; ++j)
#pragma unroll
        for (int k = 0; k < Quarter<U>::STEPS; ++k)
          if (Quarter<U>::has(rank * D::QUARTERS + j, k)) ptx::ldmatrix2(query[i][j][k], D::at(from, rank, j, k));
    }
#pragma unroll
    for (int n = 0; n < U::NT; ++n) {
      base[n][0] = base[n][1] = -INFINITY;
#pragma unroll
      for (int m = 0; m < D::MIXED; ++m)
#pragma unroll
        for (int c = 0; c < 4; ++c) sum[n][m][c] = 0.0f;
    }
#pragma unroll
    for (int i = 0; i < D::TILES; ++i) own_base[i][0] = own_base[i][1] = -INFINITY;
    total = 0.0f;
  }

  // This CTA's quarters of the scores of this warp's step of block `block`, added up.
  __device__ __forceinline__ void score(int block, Scores& s) const {
    const uint32_t from = Blocks::at(block, own) + D::vector(lane % 16, lane / 16);
    float part[D::QUARTERS][D::TILES][4] = {};
#pragma unroll
    for (int k = 0; k < Quarter<U>::STEPS; ++k)
#pragma unroll
      for (int j = 0; j < D::QUARTERS; ++j) {
        if (!Quarter<U>::has(rank * D::QUARTERS + j, k)) continue;
        uint32_t a[4];
        ptx::ldmatrix4(a, D::at(from, rank, j, k));
#pragma unroll
        for (int i = 0; i < D::TILES; ++i)
          ptx::mma_16816_bf16(part[j][i], a[0], a[1], a[2], a[3], query[i][j][k][0], query[i][j][k][1]);
      }
#pragma unroll
    for (int i = 0; i < D::TILES; ++i)
#pragma unroll
      for (int c = 0; c < 4; ++c) s[i][c] = D::QUARTERS == 2 ? part[0][i][c] + part[D::QUARTERS - 1][i][c] : part[0][i][c];
  }

  // Adds the other CTAs' parts: first those of the other quarter of the same half of an entry, then those of the other half. All
  // CTAs add the same values in the same order, but for which is first of two.
  __device__ __forceinline__ void exchange(int block, Scores& s) const {
#pragma unroll
    for (int hop = 0; hop < D::HOPS; ++hop) {
      float* mine = place(block, hop, warp) + 4 * lane;
#pragma unroll
      for (int i = 0; i < D::TILES; ++i)
        ptx::send16(mine + 128 * i, float4{s[i][0], s[i][1], s[i][2], s[i][3]}, arrived(block, hop), rank ^ 1 << hop);
      ptx::barrier_wait_cluster(arrived(block, hop), block / 2 & 1);
      if (threadIdx.x == 0) expect(block, hop);
#pragma unroll
      for (int i = 0; i < D::TILES; ++i) {
        const float4 other = *reinterpret_cast<const float4*>(mine + 128 * i);
        s[i][0] += other.x, s[i][1] += other.y, s[i][2] += other.z, s[i][3] += other.w;
      }
    }
  }

  // Where scores of block `block` arrive in exchange `hop` that warp `warp` waits for.
  __device__ __forceinline__ static float* place(int block, int hop, int warp) {
    return S::scores() + (((block & 1) * D::HOPS + hop) * 8 + warp) * (D::TILES * 128);
  }
  // The weights of a step and eight rows take the place of what their warp had from the first exchange.
  __device__ __forceinline__ static uint2* weights(int block, int step, int eight) {
    return reinterpret_cast<uint2*>(place(block, 0, eight / D::TILES * D::STEPS + step) + eight % D::TILES * 128);
  }
  // The greatest score of each row in a step.
  __device__ __forceinline__ static float* tops(int step, int eight) { return S::keep() + step * U::ROWS + 8 * eight; }

  // The weights of eight rows, relative to `low` and `high` for rows 2t and 2t + 1; 0 for those that are not served.
  __device__ __forceinline__ void put_weights(int block, int eight, const float (&s)[4], float low, float high, bool even,
                                              bool odd) const {
    uint32_t packed[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const __nv_bfloat162 pair =
          __floats2bfloat162_rn(ptx::exp2_fast(s[2 * i] - low), ptx::exp2_fast(s[2 * i + 1] - high));
      packed[i] = *reinterpret_cast<const uint32_t*>(&pair) & ((even ? 0x0000ffffu : 0u) | (odd ? 0xffff0000u : 0u));
    }
    weights(block, own, eight)[lane] = uint2{ptx::transpose(packed[0]), ptx::transpose(packed[1])};
  }

  // Scores of this warp's step to weights. By all warps; `live`: the block has this step. Whether any row's base rises: behind an
  // item's first block as a rule none does, and nothing is to be known of other steps.
  __device__ __forceinline__ bool weigh(int block, Scores& s, float factor, const Step& step, bool live, bool first) {
    bool rises = false;
#pragma unroll
    for (int i = 0; i < D::TILES; ++i) {
      const int n = group * D::TILES + i;
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        s[i][c] *= factor;
        if (c / 2 * 8 + g >= step.keys) s[i][c] = -INFINITY;
        if (step.keys < 0) s[i][c] = __int_as_float(0x7fffffff);
        rises |= live && serves(step, n, c % 2) && s[i][c] > own_base[i][c % 2] + SLACK;
      }
      if (!first) put_weights(block, n, s[i], own_base[i][0], own_base[i][1], serves(step, n, 0), serves(step, n, 1));
    }
    if (!first && !__syncthreads_or(rises)) return false;
#pragma unroll
    for (int i = 0; i < D::TILES; ++i) {
      const int n = group * D::TILES + i;
      float top[2];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        top[r] = fmaxf(s[i][r], s[i][2 + r]);
#pragma unroll
        for (int by = 4; by < 32; by *= 2) top[r] = fmaxf(top[r], __shfl_xor_sync(0xffffffffu, top[r], by));
        if (!live || !serves(step, n, r)) top[r] = -INFINITY;
      }
      if (g == 0) *reinterpret_cast<float2*>(tops(own, n) + 2 * t) = float2{top[0], top[1]};
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < D::TILES; ++i) {
      const int n = group * D::TILES + i;
      float from[2] = {};
#pragma unroll
      for (int k = 0; k < D::STEPS; ++k) {
        const float2 top = *reinterpret_cast<const float2*>(tops(k, n) + 2 * t);
        if (top.x > own_base[i][0] + SLACK) own_base[i][0] = top.x;
        if (top.y > own_base[i][1] + SLACK) own_base[i][1] = top.y;
        if (k == own) from[0] = own_base[i][0], from[1] = own_base[i][1];
      }
      put_weights(block, n, s[i], from[0], from[1], serves(step, n, 0), serves(step, n, 1));
    }
    __syncthreads();
    return true;
  }

  __device__ __forceinline__ bool serves(const Step& step, int eight, int r) const {
    const int row = 8 * eight + 2 * t + r;
    return row >= step.low && row < step.high;
  }
  // The value that the lanes of row g have for it, of one for each row 2t and 2t + 1.
  __device__ __forceinline__ float of_row(float even, float odd) const {
    even = __shfl_sync(0xffffffffu, even, g / 2), odd = __shfl_sync(0xffffffffu, odd, g / 2);
    return g % 2 == 0 ? even : odd;
  }

  // Weights of a block's step times the latents. RISE: some row's base rises in this block.
  template <bool RISE>
  __device__ __forceinline__ void mix_step(int block, int sent, int k, const Step* step) {
    uint32_t values[D::MIXED][4];
    const int first = D::MIXED * (warp % D::MIXING);
    const uint32_t latents = Blocks::at(block, k) + (D::vector(lane % 8 + lane / 16 * 8, lane / 8 % 2) ^ first % 2 * 32) +
                             first / 2 * D::BOX_BYTES;
    static_assert(D::MIXED <= 2, "columns of one box");
#pragma unroll
    for (int m = 0; m < D::MIXED; ++m) ptx::ldmatrix4_transposed(values[m], latents ^ m * 32);
#pragma unroll
    for (int n = 0; n < U::NT; ++n) {
      if (step && (step->low >= 8 * n + 8 || step->high <= 8 * n)) continue;
      const uint2 w = weights(sent, k, n)[lane];
      float keep = 1.0f;
      if (RISE) {
        const float2 top = *reinterpret_cast<const float2*>(tops(k, n) + 2 * t);
        const bool low = top.x > base[n][0] + SLACK, high = top.y > base[n][1] + SLACK;
        if (__any_sync(0xffffffffu, low || high)) {
          const float by[2] = {low ? ptx::exp2_fast(base[n][0] - top.x) : 1.0f, high ? ptx::exp2_fast(base[n][1] - top.y) : 1.0f};
          if (low) base[n][0] = top.x;
          if (high) base[n][1] = top.y;
#pragma unroll
          for (int m = 0; m < D::MIXED; ++m)
            sum[n][m][0] *= by[0], sum[n][m][1] *= by[1], sum[n][m][2] *= by[0], sum[n][m][3] *= by[1];
          keep = of_row(by[0], by[1]);
        }
      }
      if (warp == n) total = total * keep + Softmax::added(w);
#pragma unroll
      for (int m = 0; m < D::MIXED; ++m)
        ptx::mma_16816_bf16(sum[n][m], values[m][0], values[m][1], values[m][2], values[m][3], w.x, w.y);
    }
  }
  // The same for all `steps` steps of a block, the first `trunk` of which serve all rows.
  template <bool RISE>
  __device__ __forceinline__ void mix(int block, int sent, int trunk, int steps) {
    if (trunk >= D::STEPS) {
#pragma unroll
      for (int k = 0; k < D::STEPS; ++k) mix_step<RISE>(block, sent, k, nullptr);
      return;
    }
#pragma unroll 1
    for (int k = 0; k < ::min(steps, D::STEPS); ++k) {
      const Step own = k < trunk ? Step{0, U::ROWS, KEYS} : Blocks::step_of(block, k);
      mix_step<RISE>(block, sent, k, &own);
    }
  }

  // Partial results, as those of wide tiles, by way of the place of block `block`, which is no longer needed: lanes have columns
  // that are far apart.
  __device__ __forceinline__ void store(const Work& work, int block, float* part_o, float* part_ml, int Z) const {
    constexpr int STRIDE = D::COLUMNS + 4;  // no bank twice
    static_assert(U::ROWS * STRIDE * 4 <= D::STEPS * KEYS * U::KEY, "sums fit a block");
    float* sums = reinterpret_cast<float*>(Blocks::place(block, 0));
    const int64_t first = work.part, room = ::min(int64_t(work.rows), Z - work.part);
    const Softmax whole = {0.0f, total};
    const float all = whole.all();
#pragma unroll
    for (int n = 0; n < U::NT; ++n) {
      const float relative = of_row(base[n][0], base[n][1]);
      if (rank == 0 && warp == n && t == 0 && 8 * n + g < room)
        *reinterpret_cast<float2*>(part_ml + (first + 8 * n + g) * 2) = float2{relative, all};
      if (warp >= D::MIXING) continue;
      float* to = sums + (8 * n + 2 * t) * STRIDE + 16 * D::MIXED * warp + g;
#pragma unroll
      for (int m = 0; m < D::MIXED; ++m)
#pragma unroll
        for (int c = 0; c < 4; ++c) to[c % 2 * STRIDE + 16 * m + c / 2 * 8] = sum[n][m][c];
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < (U::ROWS * D::COLUMNS / 4 + 255) / 256; ++i) {
      const int row = (256 * i + threadIdx.x) / (D::COLUMNS / 4), column = threadIdx.x % (D::COLUMNS / 4) * 4;
      if (row < room)
        *reinterpret_cast<float4*>(part_o + (first + row) * U::C + rank * D::COLUMNS + column) =
            *reinterpret_cast<const float4*>(sums + row * STRIDE + column);
    }
  }
};

}  // namespace mla
}  // namespace kd
