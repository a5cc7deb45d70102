// The products of moe/product.cuh for slabs of many rows: a CTA's warps take neighbouring units and one copy of the rows.
//
// All warps bring the rows into shared memory, a stage of K some stages ahead, and wait for nothing but a stage's arrival and,
// before a slot is filled again, its release. A warp has all of K, segment by segment, and adds the segments in their order:
// the bits are those of moe/product.cuh.
#pragma once

#include "moe/product.cuh"

namespace kd {
namespace moe {

template <class U>
struct Wide {
  static constexpr int STEPS = U::UNITS / U::WARPS, DEPTH = U::PER_STAGE * BLOCK_K, CHUNKS = DEPTH / 8;
  static constexpr int STAGES = U::K / DEPTH, A_SEGMENT = U::SEG / DEPTH;
  static constexpr int ROW_BYTES = DEPTH * 2, TOKEN_BYTES = U::SLAB * ROW_BYTES;
  // Rows that a warp copies at once, and rows that one of its lanes takes part in.
  static constexpr int AT_ONCE = 32 / CHUNKS, OWN = (U::SLAB + AT_ONCE * U::WARPS - 1) / (AT_ONCE * U::WARPS);
  using Steps = Walk<U, STEPS, Lists>;
  using Own = Ring<U, Steps, U::K / BLOCK_K>;
};

// A stage of rows in shared memory: row r has its 16-byte chunks in order, neighbouring groups of 32 exchanged in odd rows, so
// that the eight rows that a warp reads at once lie in different banks.
__device__ __forceinline__ int chunk_place(int row, int chunk) { return chunk ^ ((row & 1) << 2); }

// What one warp does to bring rows: AT_ONCE of each AT_ONCE * WARPS neighbouring ones. `row(place)` as in products.
template <class U, class S, class Row>
struct Bringer {
  using W = Wide<U>;
  typename W::Steps& walk;
  Lists entries;
  Row row;
  const __nv_bfloat16* values;
  int from[W::OWN];
  int rows, stage;

  static __device__ __forceinline__ int own(int i) {
    return (i * U::WARPS + int(threadIdx.x) / 32) * W::AT_ONCE + int(threadIdx.x) % 32 / W::CHUNKS;
  }

  __device__ __forceinline__ void enter() {
    stage = 0;
    if (walk.done()) return;
    const int first = walk.first();
    rows = walk.rows();
#pragma unroll
    for (int i = 0; i < W::OWN; ++i) from[i] = row(first + (own(i) < rows ? own(i) : 0)) * U::K + int(threadIdx.x) % W::CHUNKS * 8;
  }

  // The next stage, if there is one, to `slot` for its use of this parity.
  __device__ __forceinline__ void bring(int slot, uint32_t parity) {
    if (walk.done()) return;
    ptx::barrier_wait(S::vacant() + slot, parity ^ 1);
    const uint32_t to = ptx::shared_address(S::tokens() + slot * W::TOKEN_BYTES);
#pragma unroll
    for (int i = 0; i < W::OWN; ++i) {
      // Rows that fill the last tile are 0: they cost no traffic and little power.
      if (own(i) >= (rows + 7) / 8 * 8) continue;
      ptx::copy16(to + own(i) * W::ROW_BYTES + 16 * chunk_place(own(i), int(threadIdx.x) % W::CHUNKS),
                  values + from[i], own(i) < rows);
      from[i] += W::DEPTH;
    }
    ptx::barrier_arrive_copies(S::landed() + slot);
    if (++stage < W::STAGES) return;
    __syncwarp();
    if (threadIdx.x % 32 == 0) walk.next(entries);
    __syncwarp();
    enter();
  }
};

// Sums of one step of one warp.
template <class U, class S, int NT, class B, class Store>
__device__ __forceinline__ void wide_product(typename Wide<U>::Own& ring, B& bringer, Store store) {
  using W = Wide<U>;
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const uint4 bias = ptx::load_shared16(S::bias());
  // The sum of the segments so far is touched once in many blocks: it waits in shared memory, as registers are short.
  float4* totals = reinterpret_cast<float4*>(S::totals()) + int(threadIdx.x) / 32 * (U::SLAB / 8 * 64) + lane;
#pragma unroll 1
  for (int segment = 0;; ++segment) {
    float sum[2][NT][4] = {};
#pragma unroll 1
    for (int stage = 0; stage < W::A_SEGMENT; ++stage) {
      ring.renew();
      const unsigned char* at = ring.front();
      ptx::barrier_wait(S::landed() + ring.slot, ring.parity);
      const unsigned char* rows = S::tokens() + ring.slot * W::TOKEN_BYTES + g * W::ROW_BYTES;
#pragma unroll
      for (int b = 0; b < U::PER_STAGE; ++b, at += BLOCK_BYTES) {
        uint4 words[2];
        uint2 scales[2];
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          words[m] = *reinterpret_cast<const uint4*>(at + 512 * m + 16 * lane);
          scales[m] = *reinterpret_cast<const uint2*>(at + WORD_BYTES + 64 * m + 8 * g);
        }
        auto tokens = [&](int group, Tokens<NT>& to) {
#pragma unroll
          for (int j = 0; j < NT; ++j)
            to.tile[j] = from_words(*reinterpret_cast<const uint4*>(rows + 8 * j * W::ROW_BYTES +
                                                                    16 * chunk_place(g, 4 * group + t)));
        };
        Tokens<NT> first, second;
        float start[NT][4];
        tokens(2 * b, first), start_of<NT>(first, bias, start);
        multiply<NT>({words[0].x, words[1].x}, {words[0].y, words[1].y}, {scales[0].x, scales[1].x}, first, start, sum);
        tokens(2 * b + 1, second), start_of<NT>(second, bias, start);
        multiply<NT>({words[0].z, words[1].z}, {words[0].w, words[1].w}, {scales[0].y, scales[1].y}, second, start, sum);
      }
      ptx::barrier_arrive_warp(S::vacant() + ring.slot, lane);
      bringer.bring(ring.slot_before(), ring.slot == 0 ? ring.parity : ring.parity ^ 1);
      ring.pop();
    }
    const bool last = segment + 1 == U::SEGS;
#pragma unroll
    for (int m = 0; m < 2; ++m)
#pragma unroll
      for (int j = 0; j < NT; ++j) {
        float(&own)[4] = sum[m][j];
        float4& before = totals[(m * NT + j) * 32];
        if (segment > 0) own[0] += before.x, own[1] += before.y, own[2] += before.z, own[3] += before.w;
        if (last)
          store(m, j, own);
        else
          before = make_float4(own[0], own[1], own[2], own[3]);
      }
    if (last) return;
  }
}

// As products.
template <class U, class S, class Row, class Store>
__device__ __forceinline__ void wide_products(const void* weights, const Lists& entries, const __nv_bfloat16* values, Row row,
                                              Store store, void (*ready)()) {
  using W = Wide<U>;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, t = lane % 4;
  uint64_t* bars = S::bars() + warp * U::STAGES;
  if (lane == 0)
    for (int i = 0; i < U::STAGES; ++i) ptx::barrier_init(bars + i, 1);
  if (threadIdx.x == 0) {
    for (int i = 0; i < U::STAGES; ++i) {
      ptx::barrier_init(S::landed() + i, 32 * U::WARPS);
      ptx::barrier_init(S::vacant() + i, ptx::warp_arrivals(U::WARPS));
    }
    *reinterpret_cast<uint4*>(S::bias()) = make_uint4(INT4_BIAS, INT4_BIAS, INT4_BIAS_HIGH, INT4_BIAS_HIGH);
  }
  if (lane == 0) ptx::barriers_ready();
  __syncthreads();
  typename W::Steps* walks = reinterpret_cast<typename W::Steps*>(S::walks()) + 3 * warp;
  typename W::Steps& walk = walks[0];
  typename W::Own ring{S::ring() + warp * U::STAGES * W::Own::STAGE_BYTES,
                       bars,
                       static_cast<const unsigned char*>(weights),
                       warp * (U::K / BLOCK_K),
                       entries,
                       walks + 1};
  walk.begin(entries, blockIdx.x, gridDim.x);
  if (ptx::elect_one()) {
    walks[1] = walks[2] = walk;
    ring.start();
  }
  __syncwarp();
  ready();
  Bringer<U, S, Row> bringer{walks[2], entries, row, values};
  bringer.enter();
#pragma unroll 1
  for (int i = 0; i + 1 < U::STAGES; ++i) bringer.bring(i, 0);
  while (!walk.done()) {
    with_tiles<U::SLAB / 8>((walk.rows() + 7) / 8, [&](auto tiles) {
      wide_product<U, S, decltype(tiles)::value>(ring, bringer, [&](int m, int j, const float(&sums)[4]) {
        const int column = 8 * j + 2 * t;
        store(walk.step * U::WARPS + warp, m, walk.first() + column, walk.rows() - column, sums);
      });
    });
    __syncwarp();
    if (lane == 0) walk.next(entries);
    __syncwarp();
  }
}

// In the form that the unit is declared with.
template <class U, class S, class Row, class Store>
__device__ __forceinline__ void all_products(const void* weights, int32_t* plan, int product, const int32_t* entries,
                                             const __nv_bfloat16* values, Row row, Store store, void (*ready)()) {
  const Lists lists{plan, entries};
  if constexpr (U::WIDE)
    wide_products<U, S>(weights, lists, values, row, store, ready);
  else
    products<U, S>(weights, lists, plan + 2 + product, values, row, store, ready);
}

}  // namespace moe
}  // namespace kd
