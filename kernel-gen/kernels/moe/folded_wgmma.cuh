// Products of folded weights (moe/folded.cuh) for many rows on sm_90a: 64 rows of weights and up to SLAB tokens a product of a warpgroup,
// one chain of them over all of K.
//
// Weights are unpacked into the registers that a product takes as its first operand; rows come to shared memory as the second, pairs of
// values in the order of moe/wgmma.cuh. Nothing but the products touches the sums. While the tensor core is at one part of the weights, its
// warpgroup unpacks the next.
//
// A CTA has GROUPS warpgroups that compute, 64 TILES rows of weights each, and one whose warps bring: one says what the items are, one
// brings weights, two bring rows. They share barriers and shared memory alone. Items are drawn one by one: SMs do not run equally fast.
#pragma once

#include "moe/folded.cuh"
#include "moe/slabs.cuh"
#include "moe/stream.cuh"
#include "ptx/bulk.cuh"
#include "ptx/pdl.cuh"
#include "ptx/wgmma_f16.cuh"

namespace kd {
namespace moe {

template <class U>
struct FoldedWarpgroup {
  static constexpr int UNITS = 2 * U::TILES * U::GROUPS, STEPS = U::UNITS / UNITS / U::RUN, ROWS = 32 * UNITS;
  // A stage is two blocks of each unit, and of the rows.
  static constexpr int BLOCKS = 2, K_STAGES = U::K / (BLOCKS * BLOCK_K), LENGTH = U::RUN * K_STAGES, WARPS = 4 * U::GROUPS;
  static constexpr int UNIT_BYTES = BLOCKS * BLOCK_BYTES, WEIGHT_BYTES = UNITS * UNIT_BYTES;
  static constexpr int HALF_BYTES = U::SLAB * BLOCK_K * 2, TOKEN_BYTES = BLOCKS * HALF_BYTES, BRINGERS = 2;
  static_assert(U::UNITS % (UNITS * U::RUN) == 0 && U::K % (BLOCKS * BLOCK_K) == 0, "whole items and stages");
  static_assert(LENGTH >= BRINGERS, "every warp that brings has a part in every item, so that announcements cannot overtake it");
  static_assert(U::QUEUE >= U::STAGES / LENGTH + 3, "an item for each that somebody is at, and one announced");
  // Tiles of tokens that products of so many rows have.
  static __device__ __forceinline__ int tiles(int rows) { return rows > 64 ? (rows + 15) / 16 * 2 : (rows + 7) / 8; }
};

// What an item is: rows of weights from step * ROWS * RUN on, of one slab. No rows: there is none.
struct WarpgroupItem {
  int first, rows, step, expert;
};

// Of one row of a slab: where its values begin, and two factors for whoever stores.
struct WarpgroupRow {
  int offset;
  float2 factors;
};

template <class S>
__device__ __forceinline__ WarpgroupItem item_of(int slot) {
  const int4 v = reinterpret_cast<const int4*>(S::queue())[slot];
  return {v.x, v.y, v.z, v.w};
}

// Draws items and announces them: one warp. `row(item, place)` is the WarpgroupRow of a place in the list of rows.
template <class U, class S, class Row>
__device__ __forceinline__ void announce(const int32_t* slabs, int total, int32_t* counter, const uint8_t* exponents, Row row) {
  using F = FoldedWarpgroup<U>;
  const int lane = threadIdx.x % 32;
  Place<U::QUEUE> at;
  int index = int(blockIdx.x);
#pragma unroll 1
  for (;; at.next()) {
    const bool real = index < total;
    WarpgroupItem item = {0, 0, 0, 0};
    constexpr int EACH = (U::SLAB + 31) / 32;
    WarpgroupRow own[EACH] = {};
    if (real) {
      const uint4 slab = ptx::load16(slabs + 4 * (index / F::STEPS));
      item = {int(slab.y), int(slab.z), index % F::STEPS, int(slab.x)};
#pragma unroll
      for (int i = 0; i < EACH; ++i)
        if (32 * i + lane < item.rows) own[i] = row(item, item.first + 32 * i + lane);
    }
    ptx::barrier_wait(S::done() + at.slot, at.parity ^ 1);
    if (real) {
#pragma unroll
      for (int i = 0; i < EACH; ++i)
        if (32 * i + lane < U::SLAB) {
          S::offsets()[at.slot * U::SLAB + 32 * i + lane] = own[i].offset;
          reinterpret_cast<float2*>(S::factors())[at.slot * U::SLAB + 32 * i + lane] = own[i].factors;
        }
    }
    if (lane == 0) reinterpret_cast<int4*>(S::queue())[at.slot] = make_int4(item.first, item.rows, item.step, item.expert);
    __syncwarp();
    const bool one = ptx::elect_one();
    if (one) {
      constexpr int BYTES = U::RUN * F::ROWS;
      ptx::copies_after_accesses();
      ptx::barrier_arrive_expect(S::told() + at.slot, real ? BYTES : 0);
      if (real)
        ptx::bulk_load(S::row_exponents() + at.slot * BYTES, exponents + int64_t(item.expert) * (U::UNITS * UNIT_ROWS) + item.step * BYTES, BYTES,
                       S::told() + at.slot);
    }
    if (ptx::EVERY_LANE_ARRIVES && !one) ptx::barrier_arrive(S::told() + at.slot);
    if (!real) return;
    if (lane == 0) index = int(gridDim.x) + atomicAdd(counter, 1);
    index = __shfl_sync(0xffffffffu, index, 0);
  }
}

// Brings the weights of all stages of the items: one warp.
template <class U, class S>
__device__ __forceinline__ void bring_folded_weights(const unsigned char* weights) {
  using F = FoldedWarpgroup<U>;
  if (!ptx::elect_one()) return;
  Place<U::STAGES> at;
  Place<U::QUEUE> turn;
  const uint64_t policy = ptx::evict_first();
#pragma unroll 1
  for (;; turn.next()) {
    ptx::barrier_wait(S::told() + turn.slot, turn.parity);
    const WarpgroupItem item = item_of<S>(turn.slot);
    if (item.rows == 0) return;
    const unsigned char* from = weights + int64_t(item.expert * U::UNITS + item.step * U::RUN * F::UNITS) * F::K_STAGES * F::UNIT_BYTES;
#pragma unroll 1
    for (int i = 0; i < U::RUN; ++i, from += (F::UNITS - 1) * F::K_STAGES * F::UNIT_BYTES)
#pragma unroll 1
      for (int stage = 0; stage < F::K_STAGES; ++stage, from += F::UNIT_BYTES, at.next()) {
        ptx::barrier_wait(S::vacant() + at.slot, at.parity ^ 1);
        unsigned char* to = S::ring() + at.slot * F::WEIGHT_BYTES;
        ptx::copies_after_accesses();
        ptx::barrier_arrive_expect(S::full() + at.slot, F::WEIGHT_BYTES);
#pragma unroll
        for (int u = 0; u < F::UNITS; ++u)
          ptx::bulk_load(to + u * F::UNIT_BYTES, from + u * (F::K_STAGES * F::UNIT_BYTES), F::UNIT_BYTES, S::full() + at.slot, policy);
      }
  }
}

// Brings the rows of every BRINGERS'th stage, from stage `own` on: one warp. It makes no proxy fence, which would wait for its copies.
template <class U, class S>
__device__ __forceinline__ void bring_folded_rows(int own, const __half* values) {
  using F = FoldedWarpgroup<U>;
  const int lane = threadIdx.x % 32;
  Place<U::STAGES> at;
  Place<U::QUEUE> turn;
  for (int i = 0; i < own; ++i) at.next();
#pragma unroll 1
  for (;; turn.next()) {
    ptx::barrier_wait(S::told() + turn.slot, turn.parity);
    const WarpgroupItem item = item_of<S>(turn.slot);
    if (item.rows == 0) return;
    const int parts = 2 * F::tiles(item.rows);
    const int* offsets = S::offsets() + turn.slot * U::SLAB + lane / 8;
#pragma unroll 1
    for (; own < F::LENGTH; own += F::BRINGERS) {
      ptx::barrier_wait(S::vacant() + at.slot, at.parity ^ 1);
      const uint32_t to = ptx::shared_address(S::tokens() + at.slot * F::TOKEN_BYTES) + lane / 8 * 128;
      const uint32_t even = to + 16 * (lane % 8 ^ lane / 8), odd = to + 16 * (lane % 8 ^ (lane / 8 + 4));
      const __half* from = values + own % F::K_STAGES * (F::BLOCKS * BLOCK_K) + lane % 8 * 8;
#pragma unroll
      for (int q = 0; q < U::SLAB / 4; ++q)
        if (q < parts) {
          const __half* row = from + offsets[4 * q];
          // Rows that fill the last tile are 0: they cost no traffic and little power.
#pragma unroll
          for (int b = 0; b < F::BLOCKS; ++b)
            ptx::copy16((q % 2 ? odd : even) + 512 * q + b * F::HALF_BYTES, row + b * BLOCK_K, 4 * q + lane / 8 < item.rows);
        }
      ptx::barrier_arrive_copies(S::full() + at.slot);
#pragma unroll
      for (int i = 0; i < F::BRINGERS; ++i) at.next();
    }
    own -= F::LENGTH;
  }
}

// What a thread has of the weights of a stage: words and scales of rows g and g + 8 of each tile, block by block.
template <class U>
struct FoldedWords {
  using F = FoldedWarpgroup<U>;
  uint4 words[F::BLOCKS][U::TILES];
  uint2 scales[F::BLOCKS][U::TILES];

  // From the first block of its first tile on.
  __device__ __forceinline__ void load(const unsigned char* own, int own_scales) {
#pragma unroll
    for (int b = 0; b < F::BLOCKS; ++b)
#pragma unroll
      for (int m = 0; m < U::TILES; ++m) {
        const unsigned char* block = own + 2 * m * F::UNIT_BYTES + b * BLOCK_BYTES;
        words[b][m] = *reinterpret_cast<const uint4*>(block);
        scales[b][m] = *reinterpret_cast<const uint2*>(block + own_scales);
      }
  }

  // Group c of 32 of tile m of block b, as two products take it.
  __device__ __forceinline__ void unpack(int b, int m, int c, uint32_t lift, uint32_t (&to)[2][4]) const {
    const uint4& word = words[b][m];
    const FoldedScales scale = folded_scales(lifted_scales(c ? scales[b][m].y : scales[b][m].x, lift));
    uint32_t x[4], y[4];
    folded_pairs<false>(c ? word.z : word.x, scale, x), folded_pairs<true>(c ? word.w : word.y, scale, y);
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      to[k][0] = x[2 * k], to[k][1] = y[2 * k], to[k][2] = x[2 * k + 1], to[k][3] = y[2 * k + 1];
      ptx::pin(to[k]);
    }
  }
};

// Sums of one step of one warpgroup. `lift` is of the rows g and g + 8 of each of its tiles.
template <class U, class S, int NT>
__device__ __forceinline__ void folded_product(Place<U::STAGES>& at, const uint32_t (&lift)[U::TILES], float (&sum)[U::TILES][NT][4]) {
  using F = FoldedWarpgroup<U>;
  constexpr int TILES = U::TILES, PARTS = 2 * TILES * F::BLOCKS;
  const int thread = threadIdx.x % 128, group = threadIdx.x / 128, warp = thread / 32, lane = thread % 32;
  const unsigned char* own = S::ring() + (group * TILES * 2 + warp / 2) * F::UNIT_BYTES + warp % 2 * 512 + 16 * lane;
  const int own_scales = WORD_BYTES - warp % 2 * 448 - 16 * lane + lane / 4 * 8;
#pragma unroll
  for (int m = 0; m < TILES; ++m)
#pragma unroll
    for (int j = 0; j < NT; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i) sum[m][j][i] = 0;
  FoldedWords<U> now;
  uint32_t a[2][2][4];
  // Part p of a stage: block by block, group by group, tile by tile.
  auto unpack = [&](int p) { now.unpack(p / (2 * TILES), p % TILES, p / TILES % 2, lift[p % TILES], a[p % 2]); };
  auto enter = [&] {
    ptx::barrier_wait(S::full() + at.slot, at.parity);
    ptx::copies_after_accesses();
    now.load(own + at.slot * F::WEIGHT_BYTES, own_scales);
    unpack(0);
  };
  auto multiply = [&](auto more) {
    const uint64_t rows = ptx::wgmma_rows(ptx::shared_address(S::tokens()) + at.slot * F::TOKEN_BYTES);
    const int slot = at.slot;
#pragma unroll
    for (int p = 0; p < PARTS; ++p) {
      ptx::wgmma_fence();
#pragma unroll
      for (int i = 0; i < 2; ++i)
        ptx::wgmma_add_f16(sum[p % TILES], a[p % 2][i], rows + p / (2 * TILES) * (F::HALF_BYTES / 16) + 4 * (p / TILES % 2) + 2 * i);
      ptx::wgmma_commit();
      ptx::wgmma_wait<1>();
      if (p + 1 < PARTS) unpack(p + 1);
    }
    at.next();
    // Nothing outstanding over the end of the loop: the compiler would let all products wait for each other.
    ptx::wgmma_wait<0>();
    ptx::barrier_arrive_warp(S::vacant() + slot, lane);
    // Not before: a stage is not kept until another has come.
    if constexpr (decltype(more)::value) enter();
  };
  enter();
#pragma unroll 1
  for (int stage = 1; stage < F::K_STAGES; ++stage) multiply(std::true_type{});
  multiply(std::false_type{});
#pragma unroll
  for (int m = 0; m < TILES; ++m) ptx::pin(sum[m]);
}

// Calls `run` with the number of tiles as a constant: 1 to 8, or even.
template <int NT, class Run>
__device__ __forceinline__ void with_folded_tiles(int tiles, Run run) {
  if constexpr (NT == 1)
    run(std::integral_constant<int, 1>{});
  else if (tiles == NT)
    run(std::integral_constant<int, NT>{});
  else
    with_folded_tiles<(NT > 8 ? NT - 2 : NT - 1)>(tiles, run);
}

// All items of the calling CTA. `store(slot of the queue, item, step, sums)` takes the sums of TILES times 64 rows of weights and all
// tiles of tokens.
template <class U, class S, class Row, class Store>
__device__ __forceinline__ void folded_warpgroup_products(const void* weights, const uint8_t* exponents, const __half* values, const int32_t* slabs,
                                                int total, int32_t* counter, Row row, Store store) {
  using F = FoldedWarpgroup<U>;
  const int group = threadIdx.x / 128, lane = threadIdx.x % 32;
  if (threadIdx.x == 0) {
    for (int i = 0; i < U::STAGES; ++i) {
      // Every lane of the warp that brings rows, and the bytes of the weights.
      ptx::barrier_init(S::full() + i, 33);
      ptx::barrier_init(S::vacant() + i, ptx::warp_arrivals(F::WARPS));
    }
    for (int i = 0; i < U::QUEUE; ++i)
      ptx::barrier_init(S::told() + i, ptx::warp_arrivals(1)), ptx::barrier_init(S::done() + i, ptx::warp_arrivals(F::WARPS));
    ptx::barriers_ready();
  }
  __syncthreads();
  if (group == U::GROUPS) {
    ptx::give_registers<U::BRING_REGISTERS>();
    const int role = int(threadIdx.x) / 32 - F::WARPS;
    if (role < F::BRINGERS)
      bring_folded_rows<U, S>(role, values);
    else if (role == F::BRINGERS)
      bring_folded_weights<U, S>(static_cast<const unsigned char*>(weights));
    else
      announce<U, S>(slabs, total * F::STEPS, counter, exponents, row);
    return;
  }
  ptx::take_registers<U::REGISTERS>();
  Place<U::STAGES> at;
  Place<U::QUEUE> turn;
#pragma unroll 1
  for (;; turn.next()) {
    ptx::barrier_wait(S::told() + turn.slot, turn.parity);
    const WarpgroupItem item = item_of<S>(turn.slot);
    if (item.rows == 0) return;
    with_folded_tiles<U::SLAB / 8>(F::tiles(item.rows), [&](auto tiles) {
      constexpr int NT = decltype(tiles)::value;
#pragma unroll 1
      for (int step = 0; step < U::RUN; ++step) {
        const uint8_t* exponents_of_step = S::row_exponents() + (turn.slot * U::RUN + step) * F::ROWS + group * (64 * U::TILES);
        const int own = threadIdx.x % 128 / 32 * 16 + lane / 4;
        uint32_t lift[U::TILES];
#pragma unroll
        for (int m = 0; m < U::TILES; ++m) lift[m] = fold_lift(exponents_of_step[64 * m + own], exponents_of_step[64 * m + own + 8]);
        float sum[U::TILES][NT][4];
        folded_product<U, S, NT>(at, lift, sum);
        store(turn.slot, item, item.step * U::RUN + step, exponents_of_step, sum);
      }
    });
    ptx::barrier_arrive_warp(S::done() + turn.slot, lane);
  }
}

}  // namespace moe
}  // namespace kd
