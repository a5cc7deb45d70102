// Segments of a tile that several CTAs have, or one in turn, added in order without one CTA waiting for another.
#pragma once

#include "dense/shape.cuh"
#include "ptx/ldmatrix.cuh"
#include "ptx/memory.cuh"
#include "ptx/sums.cuh"

namespace kd {
namespace many {

using gemm::Sums;

// What a CTA multiplies: segments `first` to `end` - 1 of the chain of all row tiles' segments, for one tile of tokens. CTAs
// beside each other have the same segments of other tokens.
template <class U>
struct Run {
  int lane, lanes, token_tile, token_tiles, units, first, end;

  // `places` and `counters` are the sizes of the scratch.
  __device__ __forceinline__ Run(int M, int N, int places, int counters) {
    token_tiles = (M + U::TOKENS - 1) / U::TOKENS;
    units = (N + U::ROWS - 1) / U::ROWS * U::SEGS;
    const int ctas = ::min(int(gridDim.x), ::min(places / (U::SEGS * U::PLACE), counters / U::WARPS));
    lanes = ::min(units, ctas / token_tiles);
    lane = blockIdx.x / token_tiles, token_tile = blockIdx.x % token_tiles;
    first = lane < lanes ? start(lane) : 0;
    end = lane < lanes ? start(lane + 1) : 0;
  }
  __device__ __forceinline__ int start(int of) const { return int(int64_t(units) * of / lanes); }
  __device__ __forceinline__ int lane_of(int unit) const { return int((int64_t(unit + 1) * lanes - 1) / units); }
  // A lane's CTA for these tokens.
  __device__ __forceinline__ int cta(int of) const { return of * token_tiles + token_tile; }
};

__device__ __forceinline__ float4 four(const float (&sum)[4]) { return make_float4(sum[0], sum[1], sum[2], sum[3]); }

// Sums of segments on their way to a tile's result. A CTA adds what it has of a tile from the first segment on, in registers
// (KEEP tiles of eight tokens) and memory; other segments lie apart. Memory is by thread: four sums beside the next thread's.
template <class U>
struct Totals {
  const Run<U>& run;
  float* partial;
  int32_t* arrived;
  float kept[U::MT][U::KEEP + 1][4];

  __device__ __forceinline__ int spot(int lane, int segment) const {
    return (run.cta(lane) * U::SEGS + segment) * U::PLACE + threadIdx.x * 4;
  }
  // Place 0 of a CTA is what it has from a tile's first segment on, place `segment` a later one alone.
  __device__ __forceinline__ float* place(int lane, int segment) const {
    return partial + spot(lane, segment);
  }
  __device__ __forceinline__ static float* at(float* from, int m, int n) { return from + (m * U::NT + n) * 128 * U::WARPS; }

  __device__ __forceinline__ static void store(const Sums<U>& sum, float* to, int n_first) {
#pragma unroll
    for (int n = n_first; n < U::NT; ++n)
#pragma unroll
      for (int m = 0; m < U::MT; ++m) *reinterpret_cast<float4*>(at(to, m, n)) = four(sum[m][n]);
  }
  // Adds a segment; the first of its tile replaces what was there.
  __device__ __forceinline__ void add(const Sums<U>& sum, float* to, bool begin) {
#pragma unroll
    for (int n = 0; n < U::KEEP; ++n)
#pragma unroll
      for (int m = 0; m < U::MT; ++m)
#pragma unroll
        for (int c = 0; c < 4; ++c) kept[m][n][c] = begin ? sum[m][n][c] : kept[m][n][c] + sum[m][n][c];
    if (begin) return store(sum, to, U::KEEP);
#pragma unroll
    for (int n = U::KEEP; n < U::NT; ++n)
#pragma unroll
      for (int m = 0; m < U::MT; ++m) ptx::add_device16f(at(to, m, n), four(sum[m][n]));
  }
  // Adds what was added before to the segment behind it.
  __device__ __forceinline__ void take(Sums<U>& sum, float* from) const {
#pragma unroll
    for (int n = 0; n < U::NT; ++n)
#pragma unroll
      for (int m = 0; m < U::MT; ++m) {
        const float4 before = n < U::KEEP ? four(kept[m][n]) : ptx::load_device16f(at(from, m, n));
        sum[m][n][0] += before.x, sum[m][n][1] += before.y, sum[m][n][2] += before.z, sum[m][n][3] += before.w;
      }
  }
  // True in the last warp for these rows and tokens to call this, which then sees what the others stored; its counter is zero
  // again. `count` segments arrive.
  __device__ __forceinline__ bool arrive(int owner, int count) const {
    int32_t* counter = arrived + run.cta(owner) * U::WARPS + threadIdx.x / 32;
    int before = 0;
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
      before = ptx::add_acquire_release(counter, count);
      if (before + count == U::SEGS) *counter = 0;
    }
    __syncwarp();
    return __shfl_sync(0xffffffffu, before, 0) + count == U::SEGS;
  }
};

__device__ __forceinline__ uint32_t pack(float low, float high) {
  const __nv_bfloat162 both = __floats2bfloat162_rn(low, high);
  return uint32_t(__bfloat16_as_ushort(both.y)) << 16 | __bfloat16_as_ushort(both.x);
}

// Where a warp's results go: this thread's rows and token of its first tile of 16 x 8.
struct Place {
  __nv_bfloat16* y;
  int row, M, N;
  int64_t token;

  // Rounds the sums of tile (m, n) once. Tokens beside each other in a thread become rows beside each other.
  __device__ __forceinline__ void store(float4 sum, int m, int n) const {
    const uint32_t low = ptx::transpose(pack(sum.x, sum.y)), high = ptx::transpose(pack(sum.z, sum.w));
    if (token + 8 * n >= M) return;
    __nv_bfloat16* to = y + (token + 8 * n) * N + row + 16 * m;
    if (row + 16 * m < N) *reinterpret_cast<uint32_t*>(to) = low;
    if (row + 16 * m + 8 < N) *reinterpret_cast<uint32_t*>(to + 8) = high;
  }
};

// The result of a tile from this warp's part `own` of it and those of others: part 0 is its first `joined` segments, any other
// a segment.
template <class U>
__device__ __forceinline__ void add_parts(const Sums<U>& sum, const Totals<U>& totals, int begin, int own, int joined,
                                          const Place& to) {
  constexpr int OTHERS = U::SEGS - 1;
  const int owner = totals.run.lane_of(begin);
  int from[OTHERS + 1];
#pragma unroll
  for (int i = 0; i < OTHERS; ++i) {
    const int part = i + (i >= own);
    from[i] = part < joined ? totals.spot(owner, 0) : totals.spot(totals.run.lane_of(begin + part), part);
  }
#pragma unroll
  for (int n = 0; n < U::NT; ++n) {
    float4 others[U::MT][OTHERS + 1];
#pragma unroll
    for (int m = 0; m < U::MT; ++m)
#pragma unroll
      for (int i = 0; i < OTHERS; ++i) others[m][i] = ptx::load_device16f(totals.at(totals.partial + from[i], m, n));
#pragma unroll
    for (int m = 0; m < U::MT; ++m) {
      const float4 held = four(sum[m][n]);
      float4 all = own == 0 ? held : others[m][0];
#pragma unroll
      for (int part = 1; part < U::SEGS; ++part) {
        const float4 next = part == own ? held : part < own ? others[m][part] : others[m][part - 1];
        if (part >= joined) all.x += next.x, all.y += next.y, all.z += next.z, all.w += next.w;
      }
      to.store(all, m, n);
    }
  }
}

// What becomes of the sums of segment `unit`.
template <class U>
__device__ __forceinline__ void finish(Sums<U>& sum, Totals<U>& totals, int unit, __nv_bfloat16* y, int M, int N) {
  const Run<U>& run = totals.run;
  const int tile = unit / U::SEGS, segment = unit % U::SEGS, begin = tile * U::SEGS;
  const bool mine = begin >= run.first, last = segment == U::SEGS - 1;
  float* before = totals.place(run.lane, 0);
  if (mine && !last && unit + 1 < run.end) return totals.add(sum, before, segment == 0);
  if (mine && segment > 0) totals.take(sum, before);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const Place to{y, tile * U::ROWS + warp % U::WR * 16 * U::MT + lane % 4 * 2, M, N,
                 int64_t(run.token_tile) * U::TOKENS + warp / U::WR * 8 * U::NT + lane / 4};
  if (mine && last) {
#pragma unroll
    for (int n = 0; n < U::NT; ++n)
#pragma unroll
      for (int m = 0; m < U::MT; ++m) to.store(four(sum[m][n]), m, n);
    return;
  }
  const int own = mine ? 0 : segment, owner = run.lane_of(begin), joined = run.start(owner + 1) - begin;
  totals.store(sum, totals.place(run.lane, own), 0);
  if (totals.arrive(owner, mine ? joined : 1)) add_parts(sum, totals, begin, own, joined, to);
}

}  // namespace many
}  // namespace kd
