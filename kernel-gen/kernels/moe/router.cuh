// Router: logits with K split over the CTAs of a cluster, then the choice, in one launch.
//
// A cluster makes the products of ROWS experts and TOKENS tokens. Each of its RANKS CTAs sums two segments of K, and then
// adds the segments of all, through distributed shared memory, for a share of the tokens. The last CTA of the expert blocks
// to finish a share chooses, one warp a token. Segments are fixed by H alone, so a row's bits depend neither on M nor on
// the variant.
#pragma once

#include "kd/mma.cuh"
#include "moe/router_choices.cuh"
#include "ptx/pdl.cuh"
#include "ptx/copy.cuh"

namespace kd {
namespace route {

// Where the products of this warp lie: 16 MT rows and 8 NT tokens of the CTA's, in one of its two segments.
template <class U>
struct Place {
  static constexpr bool EXACT = U::H == 2 * U::SEG * U::RANKS;

  int rank = blockIdx.x, expert = blockIdx.y * U::ROWS;
  int64_t token = int64_t(blockIdx.z) * U::TOKENS;
  int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  int segment = warp / (U::MWARPS * U::NWARPS);  // 2 and more: a warp without products
  int row = warp % U::MWARPS * 16 * U::MT, column = warp / U::MWARPS % U::NWARPS * 8 * U::NT;
};

// A step is 32 of k of each segment. Tiles have rows of 128 bytes: four pieces of 16 bytes of the first segment and four of
// the second, in pairs that are exchanged from row to row, so that a pair of four rows meets all banks. A thread copies the same
// piece of every STRIDE-th row. Rows that do not exist stay as they are: what is made of them is not read.
template <class U, int ROWS>
struct Copies {
  static constexpr int STRIDE = 4 * U::WARPS;

  const __nv_bfloat16* from;
  uint32_t to;
  int live, k;

  // `rows` rows at `operand`, for tiles at `tile`.
  __device__ __forceinline__ Copies(const __nv_bfloat16* operand, int64_t rows, int rank, uint32_t tile) {
    const int row = threadIdx.x / 8, piece = threadIdx.x % 8;
    k = (2 * rank + piece / 4) * U::SEG + piece % 4 * 8;
    from = operand + int64_t(row) * U::H + k;
    to = tile + 128 * row + 16 * (piece ^ 2 * (row & 3));
    live = int(rows < ROWS ? rows : ROWS) - row;
  }

  __device__ __forceinline__ void operator()(int step, int tile) const {
#pragma unroll
    for (int row = 0; row < ROWS; row += STRIDE)
      if (row < live)
        ptx::copy16(to + tile * U::TILE + 128 * row, from + row * U::H + 32 * step,
                    Place<U>::EXACT || k + 32 * step < U::H);
  }
};

// This thread's values of row `row`, counted from its first, of a tile: four of each 16.
template <class U>
__device__ __forceinline__ Bf16x8 fragment(const Place<U>& place, const unsigned char* tile, int row) {
  const unsigned char* from = tile + 128 * (row + place.g) + 8 * place.t;
  const uint2 first = *reinterpret_cast<const uint2*>(from + 32 * (2 * place.segment ^ (place.g & 3)));
  const uint2 second = *reinterpret_cast<const uint2*>(from + 32 * ((2 * place.segment + 1) ^ (place.g & 3)));
  return from_words(make_uint4(first.x, first.y, second.x, second.y));
}

// sum += the products of one step; `tokens` is where the tile's rows of tokens begin. Without a branch for tokens that do not
// exist: the products hide each other's latency.
template <class U>
__device__ __forceinline__ void multiply(const Place<U>& place, const Bf16x8 (&low)[U::MT], const Bf16x8 (&high)[U::MT],
                                         const unsigned char* tokens, float (&sum)[U::MT][U::NT][4]) {
#pragma unroll
  for (int n = 0; n < U::NT; ++n) {
    const Bf16x8 own = fragment(place, tokens, place.column + 8 * n);
#pragma unroll
    for (int m = 0; m < U::MT; ++m) mma_k32(sum[m][n], low[m], high[m], own);
  }
}

// Few rows: each warp reads all its weights into registers while it waits for the kernel in front, and the tokens arrive in
// two groups.
template <class U, class S>
__device__ __forceinline__ void at_once(const Place<U>& place, const Copies<U, U::TOKENS>& inputs, const __nv_bfloat16* w,
                                        float (&sum)[U::MT][U::NT][4]) {
  static_assert(U::MT == 1, "registers for one tile of weights");
  constexpr int VECS = U::H / 8, HALF = (U::STEPS + 1) / 2;
  Bf16x8 low[U::STEPS][1] = {}, high[U::STEPS][1] = {};
  const int row = place.expert + place.row + place.g;
#pragma unroll
  for (int step = 0; step < U::STEPS; ++step) {
    const int vec = ((2 * place.rank + place.segment) * U::SEG + 32 * step) / 8 + dealt_piece(place.t);
    if (place.segment > 1 || (!Place<U>::EXACT && vec >= VECS)) continue;
    if (row < U::E) low[step][0] = load8_constant(w, int64_t(row) * VECS + vec);
    if (row + 8 < U::E) high[step][0] = load8_constant(w, int64_t(row + 8) * VECS + vec);
  }
#pragma unroll
  for (int step = 0; step < U::STEPS; ++step) deal(low[step][0]), deal(high[step][0]);
  ptx::grid_dependency_wait();
#pragma unroll
  for (int step = 0; step < U::STEPS; ++step) {
    inputs(step, step);
    if (step + 1 == HALF) ptx::copy_commit();
  }
  ptx::copy_commit();
#pragma unroll
  for (int step = 0; step < U::STEPS; ++step) {
    if (step == 0 || step == HALF) {
      if (step == 0) ptx::copy_wait<1>();
      if (step == HALF) ptx::copy_wait<0>();
      __syncthreads();
    }
    if (place.segment < 2) multiply<U>(place, low[step], high[step], S::tile() + step * U::TILE, sum);
  }
}

// Many rows: weights and tokens pass through STAGES tiles.
template <class U, class S>
__device__ __forceinline__ void staged(const Place<U>& place, const Copies<U, U::TOKENS>& inputs,
                                       const Copies<U, U::ROWS>& weights, float (&sum)[U::MT][U::NT][4]) {
  constexpr int AHEAD = U::STAGES - 1;
#pragma unroll
  for (int step = 0; step < AHEAD; ++step)
    if (step < U::STEPS) weights(step, step);
  ptx::grid_dependency_wait();
#pragma unroll
  for (int step = 0; step < AHEAD; ++step) {
    if (step < U::STEPS) inputs(step, step);
    ptx::copy_commit();
  }
#pragma unroll 1
  for (int step = 0; step < U::STEPS; ++step) {
    ptx::copy_wait<AHEAD - 1>();
    __syncthreads();  // this step has landed for all, and all have used the tile that is filled next
    if (step + AHEAD < U::STEPS) {
      weights(step + AHEAD, (step + AHEAD) % U::STAGES);
      inputs(step + AHEAD, (step + AHEAD) % U::STAGES);
    }
    ptx::copy_commit();
    const unsigned char* tile = S::tile() + step % U::STAGES * U::TILE;
    Bf16x8 low[U::MT], high[U::MT];
#pragma unroll
    for (int m = 0; m < U::MT; ++m) {
      low[m] = fragment(place, tile, place.row + 16 * m);
      high[m] = fragment(place, tile, place.row + 16 * m + 8);
    }
    multiply<U>(place, low, high, tile + 128 * U::ROWS, sum);
  }
}

// The sums of this CTA's two segments, added, in shared memory: `sums[token][row]`, LINE floats a token.
template <class U, class S>
__device__ __forceinline__ void products(const Place<U>& place, const __nv_bfloat16* x, const __nv_bfloat16* w, int M) {
  const int64_t tokens = M - place.token;
  const uint32_t tile = ptx::shared_address(S::tile());
  const Copies<U, U::TOKENS> inputs(x + place.token * U::H, tokens, place.rank,
                                    tile + 128 * (U::STAGES > 0 ? U::ROWS : 0));
  float sum[U::MT][U::NT][4] = {};
  if constexpr (U::STAGES == 0) {
    at_once<U, S>(place, inputs, w, sum);
  } else {
    const __nv_bfloat16* own = w + int64_t(place.expert) * U::H;
    staged<U, S>(place, inputs, Copies<U, U::ROWS>(own, U::E - place.expert, place.rank, tile), sum);
  }
  ptx::grid_dependency_launch();
  __syncthreads();  // the tiles become sums

  float* sums = reinterpret_cast<float*>(S::tile());
  const auto each = [&](auto apply) {
#pragma unroll
    for (int m = 0; m < U::MT; ++m)
#pragma unroll
      for (int n = 0; n < U::NT; ++n)
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          const int token = place.column + 8 * n + 2 * place.t + c % 2, row = place.row + 16 * m + place.g + c / 2 * 8;
          apply(sums[token * U::LINE + row], sum[m][n][c]);
        }
  };
  if (place.segment == 1) each([](float& at, float own) { at = own; });
  __syncthreads();
  if (place.segment == 0) each([](float& at, float own) { at = own + at; });
}

}  // namespace route

template <class U, class S>
__device__ __forceinline__ void router(const __nv_bfloat16* x, const __nv_bfloat16* w, const float* bias,
                                       const int32_t* slots, int32_t groups, int32_t top_groups, int32_t normalize,
                                       float scaling, int32_t* arrived, float* scores, int32_t* ids, float* weights,
                                       int M) {
  const route::Place<U> place;
  const route::Choices choices{bias, slots, groups, top_groups, normalize, scaling, arrived, scores, ids, weights};
  if constexpr (U::PUSH) choices.expect<U, S>();
  choices.prepare<U, S>();
  route::products<U, S>(place, x, w, M);
  float* tile = reinterpret_cast<float*>(S::tile());
  choices.decide<U, S>(tile, tile, place.token, place.expert, M);
}

}  // namespace kd
