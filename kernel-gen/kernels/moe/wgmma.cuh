// The products of moe/product.cuh for many rows on sm_90a: 64 rows of weights and up to SLAB tokens a product of a warpgroup.
//
// Weights are unpacked into the registers that such a product takes as its first operand: they are those of four m16n8k16 one below
// the other. Rows come to shared memory as the second operand; inside of a group of 32, pairs of values lie in the order in which
// those registers meet them (moe_group and moe_gate_up_wgmma write them so). A group is two products that take the offset off the codes and
// two with the codes, as start_of and multiply have them: the same bits. Its sums are scaled into those of the segment while the next
// products run: two sets take turns.
//
// A CTA has GROUPS warpgroups that compute, 64 TILES rows of weights each, and one whose warps bring: they share barriers and stages alone.
#pragma once

#include "moe/product.cuh"
#include "moe/slabs.cuh"
#include "ptx/wgmma_rs.cuh"

namespace kd {
namespace moe {

template <class U>
struct Warpgroup {
  static constexpr int UNITS = 2 * U::TILES * U::GROUPS, ALL_STEPS = U::UNITS / UNITS, STEPS = ALL_STEPS / U::RUN;
  static constexpr int K_STAGES = U::K / BLOCK_K, A_SEGMENT = U::SEG / BLOCK_K;
  static constexpr int WEIGHT_BYTES = UNITS * BLOCK_BYTES, TOKEN_BYTES = U::SLAB * BLOCK_K * 2, WARPS = 4 * U::GROUPS;
  static constexpr int TOTALS = U::TILES * U::SLAB * 64;  // of a warpgroup, f32
  static_assert(ALL_STEPS % U::RUN == 0 && U::UNITS % UNITS == 0, "whole items");
};

// Brings the weights of all stages of the CTA's items, and says what the items are: one warp.
template <class U, class S, class Order>
__device__ __forceinline__ void bring_weights(const unsigned char* weights, const Order& order) {
  using W = Warpgroup<U>;
  Place<U::STAGES> at;
#pragma unroll 1
  for (int turn = 0;; ++turn) {
    const int index = order.index(turn);
    const bool real = index < order.total;
    const Slab slab = real ? order.slab(index) : Slab{0, 0, 0};
    const int step = real ? order.step(index) * U::RUN : 0;
    ptx::barrier_wait(S::vacant() + at.slot, at.parity ^ 1);
    if (!ptx::elect_one()) {
      if (!real) return;
      for (int i = 0; i < U::RUN * W::K_STAGES; ++i) at.next();
      continue;
    }
    // The queue still has STAGES items: those before have been read when a stage of theirs was released.
    reinterpret_cast<int4*>(S::queue())[turn % U::STAGES] = make_int4(slab.first, slab.rows, step, slab.expert);
    if (!real) {
      for (int i = 0; i < 33; ++i) ptx::barrier_arrive(S::full() + at.slot);
      return;
    }
    const unsigned char* from = weights + int64_t(slab.expert * U::UNITS + step * W::UNITS) * W::K_STAGES * BLOCK_BYTES;
#pragma unroll 1
    for (int i = 0; i < U::RUN; ++i, from += (W::UNITS - 1) * W::K_STAGES * BLOCK_BYTES)
#pragma unroll 1
      for (int stage = 0; stage < W::K_STAGES; ++stage, from += BLOCK_BYTES, at.next()) {
        ptx::barrier_wait(S::vacant() + at.slot, at.parity ^ 1);
        unsigned char* to = S::ring() + at.slot * W::WEIGHT_BYTES;
        ptx::copies_after_accesses();
        ptx::barrier_arrive_expect(S::full() + at.slot, W::WEIGHT_BYTES);
#pragma unroll
        for (int u = 0; u < W::UNITS; ++u)
          ptx::bulk_load(to + u * BLOCK_BYTES, from + u * (W::K_STAGES * BLOCK_BYTES), BLOCK_BYTES, S::full() + at.slot, ptx::evict_first());
      }
  }
}

// Brings the rows of every BRINGERS'th stage, from stage `own` on: one warp. It makes no proxy fence, which
// would wait for its copies. `row(place)` as in many_products.
template <class U, class S, class Order, class Row>
__device__ __forceinline__ void bring_rows(int own, const Order& order, const __nv_bfloat16* values, Row row) {
  using W = Warpgroup<U>;
  const int lane = threadIdx.x % 32;
  Place<U::STAGES> at;
#pragma unroll 1
  for (int turn = 0; order.index(turn) < order.total; ++turn) {
    const Slab slab = order.slab(order.index(turn));
    const int tokens = (slab.rows + 7) / 8 * 8;
    // What this lane copies of rows, every fourth.
    int offsets[U::SLAB / 4];
#pragma unroll
    for (int i = 0; i < U::SLAB / 4; ++i)
      offsets[i] = 4 * i + lane / 8 < slab.rows ? row(slab.first + 4 * i + lane / 8) * U::K : 0;
    int stage = 0;
#pragma unroll 1
    for (int i = 0; i < U::RUN * W::K_STAGES; ++i, at.next(), stage = stage + 1 == W::K_STAGES ? 0 : stage + 1) {
      if (--own >= 0) continue;
      own = U::BRINGERS - 1;
      ptx::barrier_wait(S::vacant() + at.slot, at.parity ^ 1);
      const uint32_t to = ptx::shared_address(S::tokens() + at.slot * W::TOKEN_BYTES) + lane / 8 * 128;
      const uint32_t even = to + 16 * (lane % 8 ^ lane / 8), odd = to + 16 * (lane % 8 ^ (lane / 8 + 4));
      const __nv_bfloat16* from = values + stage * BLOCK_K + lane % 8 * 8;
#pragma unroll
      for (int q = 0; q < U::SLAB / 4; ++q) {
        // Rows that fill the last tile are 0: they cost no traffic and little power.
        if (4 * q < tokens) ptx::copy16((q % 2 ? odd : even) + 512 * q, from + offsets[q], 4 * q + lane / 8 < slab.rows);
      }
      ptx::barrier_arrive_copies(S::full() + at.slot);
    }
  }
}

// Sums of one step of one warpgroup, handed to `store(sums)`.
template <class U, class S, int NT, class Store>
__device__ __forceinline__ void warpgroup_product(Place<U::STAGES>& at, const uint32_t (&bias)[4], Store store) {
  using W = Warpgroup<U>;
  constexpr int TILES = U::TILES;
  const int thread = threadIdx.x % 128, group = threadIdx.x / 128, warp = thread / 32, lane = thread % 32;
  const unsigned char* own = S::ring() + (group * TILES * 2 + warp / 2) * BLOCK_BYTES;
  const int own_words = warp % 2 * 512 + 16 * lane, own_scales = WORD_BYTES + warp % 2 * 64 + lane / 4 * 8;
  float4* totals = reinterpret_cast<float4*>(S::totals()) + group * (W::TOTALS / 4) + thread;
  float sum[TILES][NT][4];
#pragma unroll 1
  for (int segment = 0; segment < U::SEGS; ++segment) {
    float part[2][NT][4];
    uint32_t a[2][2][4];
    float low = 0, high = 0;
#pragma unroll
    for (int m = 0; m < TILES; ++m)
#pragma unroll
      for (int j = 0; j < NT; ++j)
#pragma unroll
        for (int i = 0; i < 4; ++i) sum[m][j][i] = 0;
    auto scaled = [&](int m, const float(&from)[NT][4]) {
#pragma unroll
      for (int j = 0; j < NT; ++j) {
        sum[m][j][0] += low * from[j][0], sum[m][j][1] += low * from[j][1];
        sum[m][j][2] += high * from[j][2], sum[m][j][3] += high * from[j][3];
      }
    };
#pragma unroll 1
    for (int stage = 0; stage < W::A_SEGMENT; stage += U::DEPTH) {
      int before = 0;
#pragma unroll
      for (int d = 0; d < U::DEPTH; ++d) {
        ptx::barrier_wait(S::full() + at.slot, at.parity);
        ptx::copies_after_accesses();
        const unsigned char* weights = own + at.slot * W::WEIGHT_BYTES;
        const uint64_t rows = ptx::wgmma_rows(ptx::shared_address(S::tokens()) + at.slot * W::TOKEN_BYTES);
        uint4 words[TILES];
        uint2 scales[TILES];
#pragma unroll
        for (int m = 0; m < TILES; ++m) {
          words[m] = *reinterpret_cast<const uint4*>(weights + 2 * m * BLOCK_BYTES + own_words);
          scales[m] = *reinterpret_cast<const uint2*>(weights + 2 * m * BLOCK_BYTES + own_scales);
        }
#pragma unroll
        for (int c = 0; c < 2; ++c)
#pragma unroll
          for (int m = 0; m < TILES; ++m) {
            const int p = (c * TILES + m) % 2, last = m == 0 ? TILES - 1 : m - 1;
            uint32_t x[4], y[4];
            int4_pairs(c ? words[m].z : words[m].x, x), int4_pairs(c ? words[m].w : words[m].y, y);
#pragma unroll
            for (int i = 0; i < 2; ++i) {
              a[p][i][0] = x[2 * i], a[p][i][1] = y[2 * i], a[p][i][2] = x[2 * i + 1], a[p][i][3] = y[2 * i + 1];
              ptx::pin(a[p][i]);
            }
            ptx::wgmma_fence();
            // Where the sums of a group start: as start_of has it.
            ptx::wgmma_set(part[p], bias, rows + 4 * c);
            ptx::wgmma_add(part[p], bias, rows + 4 * c + 2);
            ptx::wgmma_add(part[p], a[p][0], rows + 4 * c);
            ptx::wgmma_add(part[p], a[p][1], rows + 4 * c + 2);
            ptx::wgmma_commit();
            ptx::wgmma_wait<1>();
            if (d + c + m > 0) {
              ptx::pin(part[1 - p]);
              scaled(last, part[1 - p]);
            }
            const uint32_t scale = c ? scales[m].y : scales[m].x;
            low = __uint_as_float(scale << 16), high = __uint_as_float(scale & 0xffff0000u);
            if (d > 0 && c + m == 0) ptx::barrier_arrive_warp(S::vacant() + before, lane);
          }
        before = at.slot;
        at.next();
      }
      // Nothing outstanding over the end of the loop: the compiler would let all products wait for each other.
      ptx::wgmma_wait<0>();
      ptx::pin(part[1]);
      scaled(TILES - 1, part[1]);
      ptx::barrier_arrive_warp(S::vacant() + before, lane);
    }
    if constexpr (U::SEGS > 1) {
#pragma unroll
      for (int m = 0; m < TILES; ++m)
#pragma unroll
        for (int j = 0; j < NT; ++j) {
          float(&s)[4] = sum[m][j];
          float4& total = totals[(m * (U::SLAB / 8) + j) * 128];
          if (segment > 0) {
            const float4 v = total;
            s[0] += v.x, s[1] += v.y, s[2] += v.z, s[3] += v.w;
          }
          if (segment + 1 < U::SEGS) total = make_float4(s[0], s[1], s[2], s[3]);
        }
    }
  }
  store(sum);
}

// All items of the calling CTA. `store(slab, step, sums)` takes the sums of TILES times 64 rows of weights and all tiles of tokens.
template <class U, class S, class Order, class Row, class Store>
__device__ __forceinline__ void warpgroup_products(const void* weights, const Order& order, const __nv_bfloat16* values,
                                                   Row row, Store store) {
  using W = Warpgroup<U>;
  const int group = threadIdx.x / 128;
  if (threadIdx.x == 0) {
    for (int i = 0; i < U::STAGES; ++i) {
      // Every lane of the warp that brings it, and the bytes of the weights.
      ptx::barrier_init(S::full() + i, 33);
      ptx::barrier_init(S::vacant() + i, ptx::warp_arrivals(W::WARPS));
    }
    ptx::barriers_ready();
    *reinterpret_cast<uint4*>(S::bias()) = make_uint4(INT4_BIAS, INT4_BIAS, INT4_BIAS_HIGH, INT4_BIAS_HIGH);
  }
  __syncthreads();
  if (group == U::GROUPS) {
    ptx::give_registers<U::BRING_REGISTERS>();
    const int own = int(threadIdx.x) / 32 - W::WARPS;
    if (own < U::BRINGERS)
      bring_rows<U, S>(own, order, values, row);
    else if (own == U::BRINGERS)
      bring_weights<U, S>(static_cast<const unsigned char*>(weights), order);
    return;
  }
  ptx::take_registers<U::REGISTERS>();
  // From memory, since the compiler would make a known constant anew for each use.
  const uint4 offset = ptx::load_shared16(S::bias());
  const uint32_t bias[4] = {offset.x, offset.y, offset.z, offset.w};
  Place<U::STAGES> at;
#pragma unroll 1
  for (int turn = 0;; ++turn) {
    ptx::barrier_wait(S::full() + at.slot, at.parity);
    const int4 item = reinterpret_cast<const int4*>(S::queue())[turn % U::STAGES];
    if (item.y == 0) return;
    with_tiles<U::SLAB / 8>((item.y + 7) / 8, [&](auto tiles) {
      constexpr int NT = decltype(tiles)::value;
#pragma unroll 1
      for (int step = item.z; step < item.z + U::RUN; ++step)
        warpgroup_product<U, S, NT>(at, bias, [&](const float(&sums)[U::TILES][NT][4]) {
          store(Slab{item.w, item.x, item.y}, step, sums);
        });
    });
  }
}

}  // namespace moe
}  // namespace kd
