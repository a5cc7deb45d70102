// The products of moe/product.cuh for many rows: blocked in registers, 64 rows of weights and up to SLAB tokens a warp.
//
// What bounds many rows is the tensor core, so all else is spread thin: a value of x that a warp reads from shared memory meets
// four tiles of 16 weights, a word of codes that it unpacks up to SLAB / 8 tiles of 8 tokens, and where the sums of a group
// start comes with the rows, made once for each row. The sums of the segments so far wait in shared memory.
//
// A CTA's warps take neighbouring weights and one copy of the rows. A stage is 64 values of k: its rows, their starts and the
// weights of all warps complete one barrier; all warps bring it, two stages ahead.
#pragma once

#include "moe/product.cuh"
#include "moe/slabs.cuh"
#include "ptx/copy4.cuh"

namespace kd {
namespace moe {

template <class U>
struct Many {
  static constexpr int UNITS = 2, M_TILES = 2 * UNITS, STEPS = U::UNITS / (UNITS * U::WARPS);
  static constexpr int K_STAGES = U::K / BLOCK_K, A_SEGMENT = U::SEG / BLOCK_K;
  static constexpr int ROW_BYTES = BLOCK_K * 2, TOKEN_BYTES = U::SLAB * ROW_BYTES;
  static constexpr int BLOCKS = UNITS * U::WARPS, WEIGHT_BYTES = BLOCKS * BLOCK_BYTES;
  static constexpr int QUEUE = 4, AHEAD = U::STAGES - 1;
  // Where the table has row `i` of a slab: what a lane copies, every fourth, lies together.
  static __device__ __forceinline__ int table(int i) { return i % 4 * (U::SLAB / 4) + i / 4; }
  static_assert(U::STAGES <= QUEUE, "the queue holds an item for each stage and the one after");
};

// A row of a stage has its 16-byte chunks in order, the halves exchanged in odd rows, so that the two rows that a quarter of a warp
// reads at once lie in different banks.
__device__ __forceinline__ int many_chunk(int row, int chunk) { return chunk ^ ((row & 1) << 2); }

// The operand that takes off the offset of the codes, as values that the compiler does not know: a known constant it would make anew
// for each use.
__device__ __forceinline__ uint4 start_bias() {
  const uint32_t low = ptx::opaque(int(INT4_BIAS)), high = ptx::opaque(int(INT4_BIAS_HIGH));
  return make_uint4(low, low, high, high);
}

// What an item is to the warp that computes it.
struct Turn {
  int first, rows, step, expert;
};

// How stages come: the warps of a CTA bring them in turn, each all of a stage. The item of a stage lies in a queue and the rows of the
// item in a table, both in shared memory and made by the warp that brings its first stage. Where items are DRAWN, because they are few and
// long, whoever is done first takes the next one: a CTA that has had a large slab gets fewer. A warp that brings a stage has waited for the
// release of a later one than that before it: by then the table is there, and nobody needs the last. An item without rows ends all.
template <class U, class S, class Row>
struct Supply {
  using M = Many<U>;
  using Order = SlabOrder<M::STEPS>;
  const Order order;
  int32_t* drawn;
  const unsigned char* weights;
  const __nv_bfloat16* values;
  const float* starts;
  Row row;

  static __device__ __forceinline__ int4* item(int turn) { return reinterpret_cast<int4*>(S::queue()) + turn % M::QUEUE; }

  __device__ __forceinline__ void enter(int turn) {
    const int lane = threadIdx.x % 32;
    int index = order.index(turn);
    if constexpr (U::DRAWN)
      if (turn > 0) index = int(gridDim.x) + __shfl_sync(0xffffffffu, lane == 0 ? atomicAdd(drawn, 1) : 0, 0);
    const Slab slab = index < order.total ? order.slab(index) : Slab{0, 0, 0};
    __syncwarp();  // the table may have been read by this warp
    if (lane == 0) *item(turn) = make_int4(slab.first, slab.rows, order.step(index), slab.expert);
#pragma unroll
    for (int i = 0; i < U::SLAB; i += 32)
      if (i + lane < slab.rows) S::offsets()[M::table(i + lane)] = row(slab.first + i + lane) * U::K;
    __syncwarp();
  }

  // Stage `n` has come, or has been read by all warps.
  static __device__ __forceinline__ void wait_for_arrival(int n) {
    ptx::barrier_wait(S::full() + n % U::STAGES, n / U::STAGES & 1);
  }
  static __device__ __forceinline__ void wait_for_release(int n) {
    ptx::barrier_wait(S::vacant() + n % U::STAGES, n / U::STAGES & 1);
  }

  // Stage `n` of all, if there is one.
  __device__ __forceinline__ void bring(int n) {
    const int turn = n / M::K_STAGES, stage = n % M::K_STAGES, slot = n % U::STAGES;
    // Addresses that depend on it are made here: kept over the products, they would not fit into registers.
    const int lane = ptx::opaque(int(threadIdx.x % 32));
    // The item in front has ended all.
    if (turn > 0 && item(turn - 1)->y == 0) return;
    if (n >= U::STAGES) wait_for_release(n - U::STAGES);
    if (stage == 0) enter(turn);
    const int4 now = *item(turn);
    if (now.y == 0) {
      if (stage == 0 && ptx::elect_one())
        for (int i = 0; i < 33; ++i) ptx::barrier_arrive(S::full() + slot);
      return;
    }
    if (ptx::elect_one()) {
      const int block = (now.w * U::UNITS + now.z * M::BLOCKS) * M::K_STAGES + stage;
      const unsigned char* at = weights + int64_t(block) * BLOCK_BYTES;
      unsigned char* to = S::ring() + slot * M::WEIGHT_BYTES;
      ptx::copies_after_accesses();
      ptx::barrier_arrive_expect(S::full() + slot, M::WEIGHT_BYTES);
#pragma unroll
      for (int u = 0; u < M::BLOCKS; ++u)
        ptx::bulk_load(to + u * BLOCK_BYTES, at + u * (M::K_STAGES * BLOCK_BYTES), BLOCK_BYTES, S::full() + slot, ptx::evict_first());
    }
    const int tokens = (now.y + 7) / 8 * 8;
    const uint32_t to = ptx::shared_address(S::tokens() + slot * M::TOKEN_BYTES) + lane / 8 * M::ROW_BYTES;
    const uint32_t even = to + 16 * (lane % 8 ^ (lane / 8 & 1) << 2);
    int offsets[U::SLAB / 4];
#pragma unroll
    for (int i = 0; i < U::SLAB / 4; ++i) offsets[i] = S::offsets()[lane / 8 * (U::SLAB / 4) + i];
    const __nv_bfloat16* from = values + stage * BLOCK_K + lane % 8 * 8;
#pragma unroll
    for (int i = 0; i < U::SLAB / 4; ++i) {
      // Rows that fill the last tile are 0: they cost no traffic and little power.
      if (4 * i < tokens) ptx::copy16(even + 4 * i * M::ROW_BYTES, from + offsets[i], 4 * i + lane / 8 < now.y);
    }
    // The starts of two neighbouring tokens lie twice, as the tensor core takes them for two rows of weights.
    const uint32_t starts_to = ptx::shared_address(S::row_starts() + slot * 4 * U::SLAB);
    int start_offsets[(2 * U::SLAB + 31) / 32];
#pragma unroll
    for (int i = 0; i < 2 * U::SLAB; i += 32) start_offsets[i / 32] = S::offsets()[M::table((i + lane) % U::SLAB)];
#pragma unroll
    for (int i = 0; i < 2 * U::SLAB; i += 32) {
      const int c = (i + lane) / U::SLAB, token = (i + lane) % U::SLAB;
      if (token >= tokens || c > 1) continue;
      const float* start = starts + start_offsets[i / 32] / 32 + 2 * stage + c;
      const uint32_t pair = starts_to + 4 * (c * 2 * U::SLAB + token / 2 * 4 + token % 2);
      ptx::copy4(pair, start, token < now.y), ptx::copy4(pair + 8, start, token < now.y);
    }
    ptx::barrier_arrive_copies(S::full() + slot);
  }
};

// One stage: two groups of NT tiles of 8 tokens and the warp's tiles of 16 weights.
template <class U, int NT>
__device__ __forceinline__ void many_stage(const unsigned char* weights, const unsigned char* rows, const float* starts,
                                           float (&sum)[Many<U>::M_TILES][NT][4]) {
  using M = Many<U>;
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const unsigned char *own_words = weights + 16 * lane, *own_scales = weights + WORD_BYTES + 8 * g;
// Both at once would need more registers than there are.
#pragma unroll 1
  for (int c = 0; c < 2; ++c) {
    const unsigned char* own_rows = rows + g * M::ROW_BYTES + 16 * many_chunk(g, 4 * c + t);
    uint32_t a[M::M_TILES][4], b[M::M_TILES][4];
    float low_scale[M::M_TILES], high_scale[M::M_TILES];
#pragma unroll
    for (int m = 0; m < M::M_TILES; ++m) {
      const int block = m / 2 * BLOCK_BYTES;
      const uint2 words = *reinterpret_cast<const uint2*>(own_words + block + 512 * (m % 2) + 8 * c);
      const uint32_t scale = *reinterpret_cast<const uint32_t*>(own_scales + block + 64 * (m % 2) + 4 * c);
      low_scale[m] = __uint_as_float(scale << 16), high_scale[m] = __uint_as_float(scale & 0xffff0000u);
      int4_pairs(words.x, a[m]), int4_pairs(words.y, b[m]);
    }
    float part[2][M::M_TILES][4];
    // The sums of a tile are scaled while the tensor core is at the next one.
    auto scaled = [&](int j, int m) {
      const float(&own)[4] = part[j % 2][m];
      sum[m][j][0] += low_scale[m] * own[0], sum[m][j][1] += low_scale[m] * own[1];
      sum[m][j][2] += high_scale[m] * own[2], sum[m][j][3] += high_scale[m] * own[3];
    };
#pragma unroll
    for (int j = 0; j <= NT; ++j) {
      Bf16x8 x = {};
      float4 s = {};
      if (j < NT) {
        x = from_words(*reinterpret_cast<const uint4*>(own_rows + 8 * j * M::ROW_BYTES));
        s = *reinterpret_cast<const float4*>(starts + c * 2 * U::SLAB + 16 * j + 4 * t);
      }
      const float start[4] = {s.x, s.y, s.z, s.w};
#pragma unroll
      for (int m = 0; m < M::M_TILES; ++m) {
        if (j < NT) ptx::mma_16816_bf16(part[j % 2][m], start, a[m][0], b[m][0], a[m][1], b[m][1], x.word[0], x.word[1]);
        if (j > 0 && m % 2 == 1) scaled(j - 1, m / 2);
      }
#pragma unroll
      for (int m = 0; m < M::M_TILES; ++m) {
        if (j < NT) ptx::mma_16816_bf16(part[j % 2][m], part[j % 2][m], a[m][2], b[m][2], a[m][3], b[m][3], x.word[2], x.word[3]);
        if (j > 0 && m % 2 == 1) scaled(j - 1, m / 2 + 2);
      }
    }
  }
}

// Sums of one item of one warp, handed to `store(j, sums)` for all tiles of weights and tile j of tokens.
template <class U, class S, int NT, class Supplies, class Store>
__device__ __forceinline__ void many_product(Supplies& supply, int& n, Store store) {
  using M = Many<U>;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  float4* totals = reinterpret_cast<float4*>(S::totals()) + warp * (U::SLAB / 8 * M::M_TILES * 32) + lane;
  // Where it is follows from the number of the stage: a count of segments kept over the products would not fit into registers.
  do {
    float sum[M::M_TILES][NT][4] = {};
    do {
      const int slot = n % U::STAGES;
      Supplies::wait_for_arrival(n);
      many_stage<U, NT>(S::ring() + slot * M::WEIGHT_BYTES + warp * (M::UNITS * BLOCK_BYTES), S::tokens() + slot * M::TOKEN_BYTES,
                        S::row_starts() + slot * 4 * U::SLAB, sum);
      // In front of the release: then whoever brings the next stage knows that this one is under way.
      if ((n + M::AHEAD) % U::WARPS == warp) supply.bring(n + M::AHEAD);
      ptx::barrier_arrive_warp(S::vacant() + slot, lane);
      ++n;
    } while (n % M::A_SEGMENT != 0);
    const int segment = (n / M::A_SEGMENT - 1) % U::SEGS;
#pragma unroll
    for (int j = 0; j < NT; ++j) {
      float own[M::M_TILES][4];
#pragma unroll
      for (int m = 0; m < M::M_TILES; ++m) {
        float4& before = totals[(j * M::M_TILES + m) * 32];
#pragma unroll
        for (int i = 0; i < 4; ++i) own[m][i] = sum[m][j][i];
        if (U::SEGS > 1 && segment > 0) own[m][0] += before.x, own[m][1] += before.y, own[m][2] += before.z, own[m][3] += before.w;
        if (U::SEGS > 1 && segment + 1 < U::SEGS) before = make_float4(own[m][0], own[m][1], own[m][2], own[m][3]);
      }
      if (segment + 1 == U::SEGS) store(j, own);
    }
  } while (n % M::K_STAGES != 0);
}

// All items of the calling CTA. `row(place)` is the row of values of a place in the list of rows; `store(turn, j, sums)` takes the
// sums of 64 rows of weights and tile j of 8 tokens.
template <class U, class S, class Row, class Store>
__device__ __forceinline__ void many_products(const void* weights, const SlabOrder<Many<U>::STEPS>& order, int32_t* drawn,
                                              const __nv_bfloat16* values, const float* starts, Row row, Store store) {
  using M = Many<U>;
  const int warp = threadIdx.x / 32;
  if (threadIdx.x == 0) {
    for (int i = 0; i < U::STAGES; ++i) {
      // Every lane of the warp that brings it, and the bytes of the weights.
      ptx::barrier_init(S::full() + i, 33);
      ptx::barrier_init(S::vacant() + i, ptx::warp_arrivals(U::WARPS));
    }
    ptx::barriers_ready();
  }
  __syncthreads();
  using Supplies = Supply<U, S, Row>;
  Supplies supply{order, drawn, static_cast<const unsigned char*>(weights), values, starts, row};
  if (warp == 0)
#pragma unroll 1
    for (int i = 0; i < M::AHEAD; ++i) supply.bring(i);
  __syncthreads();
  // The number of the stage, over all items.
  int n = 0;
#pragma unroll 1
  for (;;) {
    Supplies::wait_for_arrival(n);
    const int rows = Supplies::item(n / M::K_STAGES)->y;
    if (rows == 0) return;
    with_tiles<U::SLAB / 8>((rows + 7) / 8, [&](auto tiles) {
      many_product<U, S, decltype(tiles)::value>(supply, n, [&](int j, const float(&sums)[M::M_TILES][4]) {
        // Read again: kept over the products, it would not fit into registers. The queue still has it, for nobody brings more
        // than STAGES stages after the last that this warp has released.
        const int4 item = *Supplies::item((n - 1) / M::K_STAGES);
        store(Turn{item.x, item.y, item.z, item.w}, j, sums);
      });
    });
  }
}

}  // namespace moe
}  // namespace kd
