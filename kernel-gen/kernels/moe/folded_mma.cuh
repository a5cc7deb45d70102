// Products of folded weights (moe/folded.cuh) by mma.sync: 64 rows of weights and up to SLAB tokens a warp, in registers, one chain of
// products over all of K.
//
// As moe/many.cuh: a value of x that a warp reads from shared memory meets four tiles of 16 weights, a word of codes that it unpacks up to
// SLAB / 8 tiles of 8 tokens; a CTA's warps take neighbouring weights and one copy of the rows, and bring stages of 64 values of k in turn.
// But no group has sums of its own, nor a start.
#pragma once

#include "moe/folded.cuh"
#include "moe/many.cuh"
#include "moe/turn.cuh"
#include "ptx/ldmatrix.cuh"
#include "ptx/mma_f16.cuh"

namespace kd {
namespace moe {

template <class U>
struct Folded {
  static constexpr int UNITS = 2, M_TILES = 2 * UNITS, ROWS = 32 * UNITS, STEPS = U::UNITS / (UNITS * U::WARPS);
  static constexpr int K_STAGES = U::K / BLOCK_K, AHEAD = U::STAGES - 1;
  static constexpr int ROW_BYTES = BLOCK_K * 2, TOKEN_BYTES = U::SLAB * ROW_BYTES;
  static constexpr int BLOCKS = UNITS * U::WARPS, WEIGHT_BYTES = BLOCKS * BLOCK_BYTES, EXPONENTS = ROWS * U::WARPS;
  static __device__ __forceinline__ int table(int i) { return i % 4 * (U::SLAB / 4) + i / 4; }
};

// An item as those see it that compute it.
struct FoldedItem {
  int first, rows, step, expert;
  // Of the CTA's rows of weights, and of the rows of the slab, two factors each.
  const uint8_t* exponents;
  const float* factors;
};

// How stages come, as moe::Supply has it. `rows` says where rows of values are, and brings their factors: `rows.at(place)` and
// `rows.bring(to, i, slab, barrier address)`.
template <class U, class S, class Order, class Values>
struct FoldedSupply {
  using F = Folded<U>;
  const Order order;
  const unsigned char* weights;
  const uint8_t* exponents;
  const Values values;

  static __device__ __forceinline__ int4* item(int turn) { return reinterpret_cast<int4*>(S::queue()) + turn % U::QUEUE; }
  static __device__ __forceinline__ uint8_t* own_exponents(int turn) { return S::row_exponents() + turn % U::QUEUE * F::EXPONENTS; }
  static __device__ __forceinline__ float* own_factors(int turn) { return S::factors() + turn % U::QUEUE * (2 * U::SLAB); }

  __device__ __forceinline__ void enter(int turn) {
    const int index = order.index(turn), lane = threadIdx.x % 32;
    const Slab slab = order.slab(index);
    __syncwarp();  // the table may have been read by this warp
    if (lane == 0) *item(turn) = make_int4(slab.first, slab.rows, order.step(index), slab.expert);
    float* factors = own_factors(turn);
#pragma unroll
    for (int i = 0; i < U::SLAB; i += 32)
      if (i + lane < slab.rows) S::offsets()[F::table(i + lane)] = values.enter(slab, i + lane, factors) * U::K;
    // The next one into the cache.
    if (order.index(turn + 1) < order.total) order.slab(order.index(turn + 1));
    __syncwarp();
  }

  static __device__ __forceinline__ void wait_for_arrival(int n) {
    ptx::barrier_wait(S::full() + n % U::STAGES, n / U::STAGES & 1);
  }

  // Stage `n` of all, if there is one.
  __device__ __forceinline__ void bring(int n) {
    const int turn = n / F::K_STAGES, stage = n % F::K_STAGES, slot = n % U::STAGES;
    // Addresses that depend on it are made here: kept over the products, they would not fit into registers.
    const int lane = ptx::opaque(int(threadIdx.x % 32));
    if (order.index(turn) >= order.total) return;
    if (n >= U::STAGES) ptx::barrier_wait(S::vacant() + slot, (n / U::STAGES - 1) & 1);
    if (stage == 0) enter(turn);
    const int4 now = *item(turn);
    if (ptx::elect_one()) {
      const int block = (now.w * U::UNITS + now.z * F::BLOCKS) * F::K_STAGES + stage;
      const unsigned char* at = weights + int64_t(block) * BLOCK_BYTES;
      unsigned char* to = S::ring() + slot * F::WEIGHT_BYTES;
      ptx::copies_after_accesses();
      ptx::barrier_arrive_expect(S::full() + slot, F::WEIGHT_BYTES + (stage == 0 ? F::EXPONENTS : 0));
      if (stage == 0)
        ptx::bulk_load(own_exponents(turn), exponents + int64_t(now.w) * (32 * U::UNITS) + now.z * F::EXPONENTS, F::EXPONENTS,
                       S::full() + slot);
#pragma unroll
      for (int u = 0; u < F::BLOCKS; ++u)
        ptx::bulk_load(to + u * BLOCK_BYTES, at + u * (F::K_STAGES * BLOCK_BYTES), BLOCK_BYTES, S::full() + slot, ptx::evict_first());
    }
    const int tokens = (now.y + 7) / 8 * 8;
    const uint32_t to = ptx::shared_address(S::tokens() + slot * F::TOKEN_BYTES) + lane / 8 * F::ROW_BYTES;
    const uint32_t even = to + 16 * (lane % 8 ^ (lane / 8 & 1) << 2);
    int offsets[U::SLAB / 4];
#pragma unroll
    for (int i = 0; i < U::SLAB / 4; ++i) offsets[i] = S::offsets()[lane / 8 * (U::SLAB / 4) + i];
    const __half* from = values.rows + stage * BLOCK_K + lane % 8 * 8;
#pragma unroll
    for (int i = 0; i < U::SLAB / 4; ++i) {
      // Rows that fill the last tile are 0: they cost no traffic and little power.
      if (4 * i < tokens) ptx::copy16(even + 4 * i * F::ROW_BYTES, from + offsets[i], 4 * i + lane / 8 < now.y);
    }
    if (stage == 0) values.bring(now, own_factors(turn), lane);
    ptx::barrier_arrive_copies(S::full() + slot);
  }
};

// One stage: two groups of NT tiles of 8 tokens and the warp's tiles of 16 weights, whose scales are lifted by `lifts`.
template <class U, int NT>
__device__ __forceinline__ void folded_stage(const unsigned char* weights, const unsigned char* rows,
                                             const uint32_t (&lifts)[Folded<U>::M_TILES],
                                             float (&sum)[Folded<U>::M_TILES][NT][4]) {
  using F = Folded<U>;
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const unsigned char *own_words = weights + 16 * lane, *own_scales = weights + WORD_BYTES + 8 * g;
#pragma unroll
  for (int c = 0; c < 2; ++c) {
    const unsigned char* own_rows = rows + g * F::ROW_BYTES + 16 * many_chunk(g, 4 * c + t);
    uint32_t a[F::M_TILES][4], b[F::M_TILES][4];
#pragma unroll
    for (int m = 0; m < F::M_TILES; ++m) {
      const int block = m / 2 * BLOCK_BYTES;
      const uint2 words = *reinterpret_cast<const uint2*>(own_words + block + 512 * (m % 2) + 8 * c);
      const uint32_t scales =
          lifted_scales(*reinterpret_cast<const uint32_t*>(own_scales + block + 64 * (m % 2) + 4 * c), lifts[m]);
      const FoldedScales both = folded_scales(scales);
      folded_pairs<false>(words.x, both, a[m]);
      folded_pairs<true>(words.y, both, b[m]);
    }
#pragma unroll
    for (int j = 0; j < NT; ++j) {
      const uint4 x = *reinterpret_cast<const uint4*>(own_rows + 8 * j * F::ROW_BYTES);
#pragma unroll
      for (int m = 0; m < F::M_TILES; ++m) ptx::mma_16816_f16(sum[m][j], a[m][0], b[m][0], a[m][1], b[m][1], x.x, x.y);
#pragma unroll
      for (int m = 0; m < F::M_TILES; ++m) ptx::mma_16816_f16(sum[m][j], a[m][2], b[m][2], a[m][3], b[m][3], x.z, x.w);
    }
  }
}

// Sums of one item of one warp, handed to `store(item, sums)`.
template <class U, class S, int NT, class Supply, class Store>
__device__ __forceinline__ void folded_product(Supply& supply, int& n, Store store) {
  using F = Folded<U>;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4;
  uint32_t lifts[F::M_TILES];
  const uint8_t* own = Supply::own_exponents(n / F::K_STAGES) + warp * F::ROWS + g;
#pragma unroll
  for (int m = 0; m < F::M_TILES; ++m) lifts[m] = fold_lift(own[16 * m], own[16 * m + 8]);
  float sum[F::M_TILES][NT][4] = {};
#pragma unroll 1
  do {
    const int slot = n % U::STAGES;
    Supply::wait_for_arrival(n);
    folded_stage<U, NT>(S::ring() + slot * F::WEIGHT_BYTES + warp * (F::UNITS * BLOCK_BYTES), S::tokens() + slot * F::TOKEN_BYTES, lifts,
                        sum);
    // In front of the release: then whoever brings the next stage knows that this one is under way.
    if ((n + F::AHEAD) % U::WARPS == warp) supply.bring(n + F::AHEAD);
    ptx::barrier_arrive_warp(S::vacant() + slot, lane);
    ++n;
  } while (n % F::K_STAGES != 0);
  // The queue still has it, for nobody brings more than STAGES stages after the last that this warp has released.
  const int turn = n / F::K_STAGES - 1;
  const int4 now = *Supply::item(turn);
  store(FoldedItem{now.x, now.y, now.z, now.w, Supply::own_exponents(turn) + warp * F::ROWS, Supply::own_factors(turn)}, sum);
}

// All items of the calling CTA. `store(item, sums)` takes the sums of the warp's 64 rows of weights and all tiles of tokens.
template <class U, class S, class Order, class Values, class Store>
__device__ __forceinline__ void folded_products(const void* weights, const uint8_t* exponents, const Order& order, const Values& values,
                                                Store store) {
  using F = Folded<U>;
  using Supply = FoldedSupply<U, S, Order, Values>;
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
  Supply supply{order, static_cast<const unsigned char*>(weights), exponents, values};
  if (warp == 0)
#pragma unroll 1
    for (int i = 0; i < F::AHEAD; ++i) supply.bring(i);
  __syncthreads();
  // The number of the stage, over all items.
  int n = 0;
#pragma unroll 1
  while (order.index(n / F::K_STAGES) < order.total) {
    Supply::wait_for_arrival(n);
    with_tiles<U::SLAB / 8>((Supply::item(n / F::K_STAGES)->y + 7) / 8, [&](auto tiles) {
      folded_product<U, S, decltype(tiles)::value>(supply, n, store);
    });
  }
}

// Column block i of 8 of the calling warp's rows of weights, one token for each lane's g: the words that its four lanes t hold, with
// columns 2t and 2t + 1 of each of four blocks, become those of block t.
__device__ __forceinline__ uint4 columns_of(const uint32_t (&word)[4]) {
  const Bf16x8 own = turn(Bf16x8{{word[0], word[1], word[2], word[3]}});
  return make_uint4(own.word[0], own.word[1], own.word[2], own.word[3]);
}

}  // namespace moe
}  // namespace kd
