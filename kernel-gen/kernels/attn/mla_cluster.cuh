// What a cluster of two or four CTAs does with blocks of keys for a tile of 8 or 16 rows, so that nodes of a tree share
// one pass over the context. As in a narrow tile rows are the n8 side of the products.
//
// Each CTA has some quarters of every entry: the columns of as many quarters of the scores, which are also those that it mixes.
// So SMs share a leaf, have more of its keys on their way than one could hold, and keep the tile's sums in few registers. They
// send each other their parts of the scores, into shared memory of the receiver, where a barrier counts the bytes: that waits for
// nothing else, while a barrier of the cluster would wait for copies, too. Some blocks, a go, are scored, exchanged, weighed and
// mixed together, since each of these is the latency of a chain.
#pragma once

#include "attn/mla_blocks.cuh"
#include "ptx/cluster.cuh"
#include "ptx/exchange.cuh"
#include "ptx/ldmatrix.cuh"
#include "ptx/mma.cuh"
#include "ptx/vote.cuh"

namespace kd {
namespace mla {

// Each warp scores one step of a block for its group's rows and weighs it, and mixes some of the columns over all steps and rows.
// A lane's scores and sums are those of rows 2t and 2t + 1 of each eight.
template <class U, class S>
struct Shared {
  using Blocks = mla::Blocks<U, S>;
  using D = Division<U>;
  using Scores = float[U::GO][D::TILES][4];  // by block of a go and eight rows: of keys g, g and g + 8, g + 8

  const int rank;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int own = warp % D::STEPS, group = warp / D::STEPS;
  uint32_t query[D::TILES][D::QUARTERS][Quarter<U>::STEPS][2];
  float sum[U::NT][D::MIXED][4];
  float base[U::NT][2];         // of all rows: behind the block that was mixed last
  float own_base[D::TILES][2];  // of the rows that this warp weighs
  float total;                  // of row g of the eight rows that are this warp's number
  int go = 0;                   // exchanges so far
  uint32_t phase = 0;           // parities of the barriers of an exchange's blocks

  __device__ __forceinline__ explicit Shared(int rank) : rank(rank) {}

  // Counts what arrives of block b of a go in exchange `hop`; two gos are kept.
  __device__ __forceinline__ uint64_t* arrived(int b, int hop) const { return S::arrived() + ((go & 1) * U::GO + b) * D::HOPS + hop; }
  __device__ __forceinline__ static void expect(uint64_t* barrier) {
    ptx::barrier_arrive_expect(barrier, 8 * D::TILES * 32 * sizeof(float4));
  }
  // By one thread.
  __device__ __forceinline__ static void prepare(const ptx::TensorMap& entries) {
    ptx::prefetch(entries);
    for (int i = 0; i < 2 * U::GO * D::HOPS; ++i) ptx::barrier_init(S::arrived() + i, 1);
    Blocks::prepare();
    ptx::barriers_ready();
    for (int i = 0; i < 2 * U::GO * D::HOPS; ++i) expect(S::arrived() + i);
  }

  // An item's queries, straight into operands of products. Rows beyond the tile's repeat its last.
  __device__ __forceinline__ void take_queries(const Work& work, const __nv_bfloat16* q) {
    q += (int64_t(work.stream.first) * U::H + work.row) * U::W + 2 * t;
    const int most = work.rows - 1;
#pragma unroll
    for (int i = 0; i < D::TILES; ++i) {
      const __nv_bfloat16* row = q + ::min((group * D::TILES + i) * 8 + g, most) * U::W;
#pragma unroll
      for (int j = 0; j < D::QUARTERS; ++j)
#pragma unroll
        for (int k = 0; k < Quarter<U>::STEPS; ++k) {
          if (!Quarter<U>::has(rank * D::QUARTERS + j, k)) continue;
          const int32_t* pair = reinterpret_cast<const int32_t*>(row + Quarter<U>::at(rank * D::QUARTERS + j, k) / 2);
          query[i][j][k][0] = ptx::load4(pair), query[i][j][k][1] = ptx::load4(pair + 4);
        }
    }
  }
  __device__ __forceinline__ void clear() {
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

  // This CTA's quarters of the scores of this warp's steps of COUNT blocks from `block` on, added up.
  template <int COUNT>
  __device__ __forceinline__ void score(int block, float (*s)[D::TILES][4]) const {
    uint32_t from[COUNT];
    float part[COUNT][D::QUARTERS][D::TILES][4] = {};
#pragma unroll
    for (int b = 0; b < COUNT; ++b) from[b] = Blocks::at(block + b, own) + D::vector(lane % 16, lane / 16);
#pragma unroll
    for (int k = 0; k < Quarter<U>::STEPS; ++k)
#pragma unroll
      for (int b = 0; b < COUNT; ++b)
#pragma unroll
        for (int j = 0; j < D::QUARTERS; ++j) {
          if (!Quarter<U>::has(rank * D::QUARTERS + j, k)) continue;
          uint32_t a[4];
          ptx::ldmatrix4(a, D::at(from[b], rank, j, k));
#pragma unroll
          for (int i = 0; i < D::TILES; ++i)
            ptx::mma_16816_bf16(part[b][j][i], a[0], a[1], a[2], a[3], query[i][j][k][0], query[i][j][k][1]);
        }
#pragma unroll
    for (int b = 0; b < COUNT; ++b)
#pragma unroll
      for (int i = 0; i < D::TILES; ++i)
#pragma unroll
        for (int c = 0; c < 4; ++c)
          s[b][i][c] = D::QUARTERS == 2 ? part[b][0][i][c] + part[b][D::QUARTERS - 1][i][c] : part[b][0][i][c];
  }

  // Sends this warp's scores of block b of a go to the CTA that adds them in exchange `hop`.
  __device__ __forceinline__ void send(int b, int hop, const float (&s)[D::TILES][4]) const {
#pragma unroll
    for (int i = 0; i < D::TILES; ++i)
      ptx::send16(place(b, hop, warp) + 128 * i + 4 * lane, float4{s[i][0], s[i][1], s[i][2], s[i][3]}, arrived(b, hop), rank ^ 1 << hop);
  }
  // Adds what another CTA has sent: first that of the other quarter of the same half of an entry, then that of the other half. All
  // CTAs add the same values in the same order, but for which is first of two.
  __device__ __forceinline__ void receive(int b, int hop, float (&s)[D::TILES][4]) const {
    ptx::barrier_wait_cluster(arrived(b, hop), phase >> ((go & 1) * U::GO + b) & 1);
    if (threadIdx.x == 0) expect(arrived(b, hop));
#pragma unroll
    for (int i = 0; i < D::TILES; ++i) {
      const float4 other = *reinterpret_cast<const float4*>(place(b, hop, warp) + 128 * i + 4 * lane);
      s[i][0] += other.x, s[i][1] += other.y, s[i][2] += other.z, s[i][3] += other.w;
    }
  }
  // The same for all `live` blocks of a go, whose first exchange has been sent.
  __device__ __forceinline__ void exchange(int live, Scores& s) {
#pragma unroll
    for (int hop = 0; hop < D::HOPS; ++hop)
#pragma unroll
      for (int b = 0; b < U::GO; ++b) {
        if (b >= live) break;
        receive(b, hop, s[b]);
        if (hop + 1 < D::HOPS) send(b, hop + 1, s[b]);
      }
    phase ^= (1u << live) - 1 << (go & 1) * U::GO;
  }

  // Where scores of block b of a go arrive in exchange `hop` that warp `warp` waits for.
  __device__ __forceinline__ float* place(int b, int hop, int warp) const {
    return S::scores() + ((((go & 1) * U::GO + b) * D::HOPS + hop) * 8 + warp) * (D::TILES * 128);
  }
  // The weights of a step of a go and eight rows take the place of what their warp had from the first exchange.
  __device__ __forceinline__ uint2* weights(int step, int eight) const {
    return reinterpret_cast<uint2*>(place(step / D::STEPS, 0, eight / D::TILES * D::STEPS + step % D::STEPS) + eight % D::TILES * 128);
  }
  // The greatest score of each row in a step.
  __device__ __forceinline__ static float* tops(int step, int eight) { return S::keep() + step * U::ROWS + 8 * eight; }
  // Bit k: a base of a group's rows rises at step k of a go.
  __device__ __forceinline__ static uint32_t& rising(int group) { return reinterpret_cast<uint32_t*>(S::changed())[group]; }

  // The weights of eight rows, relative to `low` and `high` for rows 2t and 2t + 1; 0 for those that are not served.
  __device__ __forceinline__ void put_weights(int b, int eight, const float (&s)[4], float low, float high, bool even, bool odd) const {
    uint32_t packed[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const __nv_bfloat162 pair =
          __floats2bfloat162_rn(ptx::exp2_fast(s[2 * i] - low), ptx::exp2_fast(s[2 * i + 1] - high));
      packed[i] = *reinterpret_cast<const uint32_t*>(&pair) & ((even ? 0x0000ffffu : 0u) | (odd ? 0xffff0000u : 0u));
    }
    weights(b * D::STEPS + own, eight)[lane] = uint2{ptx::transpose(packed[0]), ptx::transpose(packed[1])};
  }

  // What this warp's steps of a go serve, which begins with step `first` of the item and block `block`; nothing behind the last.
  __device__ __forceinline__ void look_up(int first, int block, int trunk, int steps, Step (&own_steps)[U::GO]) const {
#pragma unroll
    for (int b = 0; b < U::GO; ++b) {
      const int number = first + b * D::STEPS + own;
      own_steps[b] = Step{0, number < steps ? U::ROWS : 0, KEYS};
      if (number >= trunk && number < steps) own_steps[b] = Blocks::step_of(block + b, own);
    }
  }

  // Scores of this warp's steps of a go to weights. By all warps. Whether any row's base rises: behind an item's first go as a rule
  // none does, and nothing is to be known of other steps.
  __device__ __forceinline__ bool weigh(float factor, bool first, const Step (&steps)[U::GO], int live, Scores& s) {
    bool rises = false;
#pragma unroll
    for (int b = 0; b < U::GO; ++b) {
      if (b >= live) break;
      const Step& step = steps[b];
#pragma unroll
      for (int i = 0; i < D::TILES; ++i) {
        const int n = group * D::TILES + i;
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          s[b][i][c] *= factor;
          if (c / 2 * 8 + g >= step.keys) s[b][i][c] = -INFINITY;
          if (step.keys < 0) s[b][i][c] = __int_as_float(0x7fffffff);
          rises |= serves(step, n, c % 2) && s[b][i][c] > own_base[i][c % 2] + SLACK;
        }
        if (!first) put_weights(b, n, s[b][i], own_base[i][0], own_base[i][1], serves(step, n, 0), serves(step, n, 1));
      }
    }
    if (!first && !ptx::any_of<32 * Blocks::WARPS>(1, rises)) return false;
#pragma unroll
    for (int b = 0; b < U::GO; ++b) {
      if (b >= live) break;
      const Step& step = steps[b];
#pragma unroll
      for (int i = 0; i < D::TILES; ++i) {
        const int n = group * D::TILES + i;
        float top[2];
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          top[r] = fmaxf(s[b][i][r], s[b][i][2 + r]);
#pragma unroll
          for (int by = 4; by < 32; by *= 2) top[r] = fmaxf(top[r], __shfl_xor_sync(0xffffffffu, top[r], by));
          if (!serves(step, n, r)) top[r] = -INFINITY;
        }
        if (g == 0) *reinterpret_cast<float2*>(tops(b * D::STEPS + own, n) + 2 * t) = float2{top[0], top[1]};
      }
    }
    ptx::named_barrier<32 * Blocks::WARPS>(1);
    uint32_t rising = 0;
#pragma unroll
    for (int i = 0; i < D::TILES; ++i) {
      const int n = group * D::TILES + i;
      float2 from[U::GO] = {};
#pragma unroll
      for (int b = 0; b < U::GO; ++b) {
        if (b >= live) break;
#pragma unroll
        for (int k = 0; k < D::STEPS; ++k) {
          const float2 top = *reinterpret_cast<const float2*>(tops(b * D::STEPS + k, n) + 2 * t);
          const bool low = top.x > own_base[i][0] + SLACK, high = top.y > own_base[i][1] + SLACK;
          if (low) own_base[i][0] = top.x;
          if (high) own_base[i][1] = top.y;
          rising |= uint32_t(low || high) << b * D::STEPS + k;
          if (k == own) from[b] = float2{own_base[i][0], own_base[i][1]};
        }
      }
#pragma unroll
      for (int b = 0; b < U::GO; ++b) {
        if (b >= live) break;
        const Step& step = steps[b];
        put_weights(b, n, s[b][i], from[b].x, from[b].y, serves(step, n, 0), serves(step, n, 1));
      }
    }
    rising = __reduce_or_sync(0xffffffffu, rising);
    if (own == 0 && lane == 0) this->rising(group) = rising;
    ptx::named_barrier<32 * Blocks::WARPS>(1);
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

  // Weights of step `at` of a go, step k of block `block`, times the latents. RISE: some row's base rises in this go, at the steps
  // whose bits are set.
  template <bool RISE>
  __device__ __forceinline__ void mix_step(int block, int k, int at, const Step* step, const uint32_t (&bits)[D::GROUPS]) {
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
      const uint2 w = weights(at, n)[lane];
      float keep = 1.0f;
      if (RISE && bits[n / D::TILES] >> at & 1) {
        const float2 top = *reinterpret_cast<const float2*>(tops(at, n) + 2 * t);
        const bool low = top.x > base[n][0] + SLACK, high = top.y > base[n][1] + SLACK;
        const float by[2] = {low ? ptx::exp2_fast(base[n][0] - top.x) : 1.0f, high ? ptx::exp2_fast(base[n][1] - top.y) : 1.0f};
        if (low) base[n][0] = top.x;
        if (high) base[n][1] = top.y;
#pragma unroll
        for (int m = 0; m < D::MIXED; ++m)
          sum[n][m][0] *= by[0], sum[n][m][1] *= by[1], sum[n][m][2] *= by[0], sum[n][m][3] *= by[1];
        keep = of_row(by[0], by[1]);
      }
      if (warp == n) total = total * keep + Softmax::added(w);
#pragma unroll
      for (int m = 0; m < D::MIXED; ++m)
        ptx::mma_16816_bf16(sum[n][m], values[m][0], values[m][1], values[m][2], values[m][3], w.x, w.y);
    }
  }
  // The same for a go from block `block` on, each of which is then no longer needed: `steps` steps, the first `trunk` of which serve all
  // rows.
  template <bool RISE>
  __device__ __forceinline__ void mix(int block, int trunk, int steps, int live) {
    uint32_t bits[D::GROUPS] = {};
    if (RISE) {
#pragma unroll
      for (int i = 0; i < D::GROUPS; ++i) bits[i] = rising(i);
    }
#pragma unroll
    for (int b = 0; b < U::GO; ++b) {
      if (b >= live) break;
      if (trunk >= (b + 1) * D::STEPS) {
#pragma unroll
        for (int k = 0; k < D::STEPS; ++k) mix_step<RISE>(block + b, k, b * D::STEPS + k, nullptr, bits);
      } else {
#pragma unroll 1
        for (int k = 0; k < ::min(steps - b * D::STEPS, D::STEPS); ++k) {
          const Step own = b * D::STEPS + k < trunk ? Step{0, U::ROWS, KEYS} : Blocks::step_of(block + b, k);
          mix_step<RISE>(block + b, k, b * D::STEPS + k, &own, bits);
        }
      }
      ptx::barrier_arrive_warp(Blocks::empty(block + b), lane);
    }
  }

  // Partial results, as those of wide tiles: each store fills whole sectors.
  __device__ __forceinline__ void store(const Work& work, float* part_o, float* part_ml, int Z) const {
    const int64_t first = work.part, room = ::min(int64_t(work.rows), Z - work.part);
    const Softmax whole = {0.0f, total};
    const float all = whole.all();
#pragma unroll
    for (int n = 0; n < U::NT; ++n) {
      const float relative = of_row(base[n][0], base[n][1]);
      if (rank == 0 && warp == n && t == 0 && 8 * n + g < room)
        *reinterpret_cast<float2*>(part_ml + (first + 8 * n + g) * 2) = float2{relative, all};
      if (warp >= D::MIXING) continue;
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int row = 8 * n + 2 * t + c;
        if (row >= room) continue;
        float* to = part_o + (first + row) * U::C + rank * D::COLUMNS + 16 * D::MIXED * warp + g;
#pragma unroll
        for (int m = 0; m < D::MIXED; ++m) to[16 * m] = sum[n][m][c], to[16 * m + 8] = sum[n][m][2 + c];
      }
    }
  }
};

}  // namespace mla
}  // namespace kd
