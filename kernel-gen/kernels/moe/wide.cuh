// The products of moe/product.cuh for slabs of many rows: a CTA's warps take neighbouring units and one copy of the rows.
//
// A warp of its own brings the rows, a stage of K ahead, and makes the sums that each group starts from; the others wait for
// it alone. A warp has all of K, segment by segment, and adds the segments in their order: the bits are those of
// moe/product.cuh.
#pragma once

#include "moe/product.cuh"

namespace kd {
namespace moe {

template <class U>
struct Wide {
  static constexpr int STEPS = U::UNITS / U::WARPS, DEPTH = U::PER_STAGE * BLOCK_K, GROUPS = DEPTH / 32;
  static constexpr int CHUNKS = DEPTH / 8, STAGES = U::K / DEPTH, A_SEGMENT = U::SEG / DEPTH;
  static constexpr int ROW_BYTES = DEPTH * 2, TOKEN_BYTES = U::SLAB * ROW_BYTES;
  using Steps = Walk<U, STEPS>;
  using Own = Ring<U, STEPS, U::K / BLOCK_K>;
};

// A stage of rows in shared memory: row r has its 16-byte chunks in order, the halves of each group's pair of groups
// exchanged in odd rows, so that the eight rows that a warp reads at once lie in different banks.
__device__ __forceinline__ int chunk_place(int row, int chunk) { return chunk ^ ((row & 1) << 2); }

// A place in the ring of stages of rows.
template <class U>
struct Turn {
  int slot = 0;
  uint32_t parity = 0;
  __device__ __forceinline__ void next() {
    if (++slot == U::ROW_STAGES) slot = 0, parity ^= 1;
  }
};

// The warp that brings rows. `row(place)` as in products.
template <class U, class S, class Row>
__device__ __forceinline__ void bring_rows(typename Wide<U>::Steps& walk, const int32_t* entries, Row row) {
  using W = Wide<U>;
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const uint4 bias = ptx::load_shared16(S::bias());
  constexpr int LANES = W::CHUNKS, ROWS_AT_ONCE = 32 / LANES;
  Turn<U> fetched, made;
  int pending = 0;  // tiles of a stage that was fetched and whose sums were not made
  auto make = [&](int tiles) {
    ptx::barrier_wait(S::landed() + made.slot, made.parity);
    const unsigned char* rows = S::rows() + made.slot * W::TOKEN_BYTES;
    float* sums = S::starts() + made.slot * (W::GROUPS * U::SLAB);
#pragma unroll 1
    for (int j = 0; j < tiles; ++j) {
#pragma unroll
      for (int group = 0; group < W::GROUPS; ++group) {
        const uint4 x = *reinterpret_cast<const uint4*>(rows + (8 * j + g) * W::ROW_BYTES + 16 * chunk_place(g, 4 * group + t));
        const float zero[4] = {};
        float start[4];
        ptx::mma_16816_bf16(start, zero, bias.x, bias.y, bias.z, bias.w, x.x, x.y);
        ptx::mma_16816_bf16(start, start, bias.x, bias.y, bias.z, bias.w, x.z, x.w);
        if (g == 0) *reinterpret_cast<float2*>(sums + group * U::SLAB + 8 * j + 2 * t) = make_float2(start[0], start[1]);
      }
    }
    __syncwarp();
    if (lane == 0) ptx::barrier_arrive(S::ready() + made.slot);
    made.next();
  };
  while (!walk.done()) {
    const int first = walk.entry.first + walk.slab * U::SLAB, rows = ::min(U::SLAB, walk.entry.rows - walk.slab * U::SLAB);
    __syncwarp();
    if (lane == 0) walk.next(entries);
    __syncwarp();
    const __nv_bfloat16* mine[2];  // rows lane and lane + 32
#pragma unroll
    for (int i = 0; i < 2; ++i) mine[i] = row(first + ::min(lane + 32 * i, rows - 1));
#pragma unroll 1
    for (int stage = 0; stage < W::STAGES; ++stage) {
      ptx::barrier_wait(S::free() + fetched.slot, fetched.parity ^ 1);
      unsigned char* to = S::rows() + fetched.slot * W::TOKEN_BYTES;
      const int chunk = lane % LANES;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
#pragma unroll 4
        for (int r = 0; r < 32 && r + 32 * i < rows; r += ROWS_AT_ONCE) {
          const int own = r + lane / LANES;
          const uint64_t from = __shfl_sync(0xffffffffu, reinterpret_cast<uint64_t>(mine[i]), own);
          if (own + 32 * i < rows)
            ptx::copy16_async(to + (own + 32 * i) * W::ROW_BYTES + 16 * chunk_place(own, chunk),
                              reinterpret_cast<const __nv_bfloat16*>(from) + stage * W::DEPTH + 8 * chunk);
        }
      }
      ptx::barrier_arrive_copies(S::landed() + fetched.slot);
      fetched.next();
      if (pending > 0) make(pending);
      pending = (rows + 7) / 8;
    }
  }
  if (pending > 0) make(pending);
}

// Sums of one step of one warp.
template <class U, class S, int NT, class Store>
__device__ __forceinline__ void wide_product(typename Wide<U>::Own& ring, Turn<U>& turn, Store store) {
  using W = Wide<U>;
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  float total[2][NT][4];
#pragma unroll 1
  for (int segment = 0; segment < U::SEGS; ++segment) {
    float sum[2][NT][4] = {};
#pragma unroll 1
    for (int stage = 0; stage < W::A_SEGMENT; ++stage) {
      ptx::barrier_wait(S::ready() + turn.slot, turn.parity);
      const unsigned char* rows = S::rows() + turn.slot * W::TOKEN_BYTES + g * W::ROW_BYTES;
      const float* starts = S::starts() + turn.slot * (W::GROUPS * U::SLAB) + 2 * t;
      const unsigned char* at = ring.front();
#pragma unroll
      for (int b = 0; b < U::PER_STAGE; ++b, at += BLOCK_BYTES) {
        uint4 words[2];
        uint2 scales[2];
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          words[m] = *reinterpret_cast<const uint4*>(at + 512 * m + 16 * lane);
          scales[m] = *reinterpret_cast<const uint2*>(at + WORD_BYTES + 64 * m + 8 * (lane / 4));
        }
        if (b + 1 == U::PER_STAGE) ring.pop();
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const int group = 2 * b + c;
          uint32_t low[2][4], high[2][4];
          float low_scale[2], high_scale[2];
#pragma unroll
          for (int m = 0; m < 2; ++m) {
            int4_pairs(c ? words[m].z : words[m].x, low[m]), int4_pairs(c ? words[m].w : words[m].y, high[m]);
            const uint32_t pair = c ? scales[m].y : scales[m].x;
            low_scale[m] = __uint_as_float(pair << 16), high_scale[m] = __uint_as_float(pair & 0xffff0000u);
          }
#pragma unroll
          for (int j = 0; j < NT; ++j) {
            const uint4 x = *reinterpret_cast<const uint4*>(rows + 8 * j * W::ROW_BYTES + 16 * chunk_place(g, 4 * group + t));
            const float2 start = *reinterpret_cast<const float2*>(starts + group * U::SLAB + 8 * j);
            const float from[4] = {start.x, start.y, start.x, start.y};
#pragma unroll
            for (int m = 0; m < 2; ++m) {
              float part[4];
              ptx::mma_16816_bf16(part, from, low[m][0], high[m][0], low[m][1], high[m][1], x.x, x.y);
              ptx::mma_16816_bf16(part, part, low[m][2], high[m][2], low[m][3], high[m][3], x.z, x.w);
              sum[m][j][0] += low_scale[m] * part[0], sum[m][j][1] += low_scale[m] * part[1];
              sum[m][j][2] += high_scale[m] * part[2], sum[m][j][3] += high_scale[m] * part[3];
            }
          }
        }
      }
      __syncwarp();
      if (lane == 0) ptx::barrier_arrive(S::free() + turn.slot);
      turn.next();
    }
#pragma unroll
    for (int m = 0; m < 2; ++m)
#pragma unroll
      for (int j = 0; j < NT; ++j)
#pragma unroll
        for (int i = 0; i < 4; ++i) total[m][j][i] = segment == 0 ? sum[m][j][i] : total[m][j][i] + sum[m][j][i];
  }
#pragma unroll
  for (int m = 0; m < 2; ++m)
#pragma unroll
    for (int j = 0; j < NT; ++j) store(m, j, total[m][j]);
}

// Calls `run` with the number of tiles as a constant.
template <int NT, class Run>
__device__ __forceinline__ void with_tiles(int tiles, Run run) {
  if constexpr (NT == 1)
    run(Tiles<1>{});
  else if (tiles == NT)
    run(Tiles<NT>{});
  else
    with_tiles<NT - 1>(tiles, run);
}

// As products; WARPS warps multiply and one more brings rows.
template <class U, class S, class Row, class Store>
__device__ __forceinline__ void wide_products(const void* weights, const int32_t* plan, const int32_t* entries, Row row,
                                              Store store, void (*ready)()) {
  using W = Wide<U>;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, t = lane % 4;
  uint64_t* bars = S::bars() + warp * U::STAGES;
  if (lane == 0 && warp < U::WARPS)
    for (int i = 0; i < U::STAGES; ++i) ptx::barrier_init(bars + i, 1);
  if (threadIdx.x == 0) {
    for (int i = 0; i < U::ROW_STAGES; ++i) {
      ptx::barrier_init(S::landed() + i, 32);
      ptx::barrier_init(S::ready() + i, 1);
      ptx::barrier_init(S::free() + i, U::WARPS);
    }
    *reinterpret_cast<uint4*>(S::bias()) = make_uint4(INT4_BIAS, INT4_BIAS, INT4_BIAS_HIGH, INT4_BIAS_HIGH);
  }
  if (lane == 0) ptx::barriers_ready();
  __syncthreads();
  typename W::Steps& walk = reinterpret_cast<typename W::Steps*>(S::walks())[2 * warp];
  if (lane == 0) walk.begin(plan, entries, blockIdx.x, gridDim.x);
  __syncwarp();
  if (warp == U::WARPS) {
    ready();
    bring_rows<U, S>(walk, entries, row);
    return;
  }
  typename W::Own ring{S::ring() + warp * U::STAGES * W::Own::STAGE_BYTES,
                       bars,
                       static_cast<const unsigned char*>(weights) + warp * (U::K / BLOCK_K * BLOCK_BYTES),
                       entries,
                       &walk + 1,
                       ptx::evict_first()};
  if (ptx::elect_one()) {
    ring.ahead[0] = walk;
    ring.start();
  }
  __syncwarp();
  ready();
  Turn<U> turn;
  while (!walk.done()) {
    const int first = walk.entry.first + walk.slab * U::SLAB;
    const int rows = ::min(U::SLAB, walk.entry.rows - walk.slab * U::SLAB), unit = walk.step * U::WARPS + warp;
    __syncwarp();
    if (lane == 0) walk.next(entries);
    __syncwarp();
    with_tiles<U::SLAB / 8>((rows + 7) / 8, [&](auto tiles) {
      wide_product<U, S, decltype(tiles)::value>(ring, turn, [&](int m, int j, const float(&sums)[4]) {
        store(unit, m, first + 8 * j + 2 * t, rows - (8 * j + 2 * t), sums);
      });
    });
  }
}

// In the form that the unit is declared with.
template <class U, class S, class Row, class Store>
__device__ __forceinline__ void all_products(const void* weights, const int32_t* plan, const int32_t* entries, Row row,
                                             Store store, void (*ready)()) {
  if constexpr (U::WIDE)
    wide_products<U, S>(weights, plan, entries, row, store, ready);
  else
    products<U, S>(weights, plan, entries, row, store, ready);
}

}  // namespace moe
}  // namespace kd
