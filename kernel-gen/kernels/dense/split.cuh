// What becomes of the sums that a warp holds in registers: rounded and stored, or, where the segments of a tile belong to CTAs
// of their own, first added in order by whichever comes last. A warp needs only what the warps in its place in the other CTAs
// summed, so each has a counter of its own and no CTA waits for another.
#pragma once

#include "dense/shape.cuh"
#include "ptx/copy.cuh"
#include "ptx/ldmatrix.cuh"
#include "ptx/memory.cuh"

namespace kd {
namespace gemm {

__device__ __forceinline__ uint32_t pack(float low, float high) {
  const __nv_bfloat162 both = __floats2bfloat162_rn(low, high);
  return uint32_t(__bfloat16_as_ushort(both.y)) << 16 | __bfloat16_as_ushort(both.x);
}

// Rounds 16 rows of 8 tokens once and stores them, four rows of one token at a time, where `at(token, row)` says: whole sectors,
// which two rows at a time are not. Neighbouring lanes have two of the four, and exchange what the other stores.
template <class At>
__device__ __forceinline__ void store_tile(const float4& sum, int64_t token, int row, At at) {
  const int lane = threadIdx.x % 32;
  const uint32_t low = ptx::transpose(pack(sum.x, sum.y)), high = ptx::transpose(pack(sum.z, sum.w));
  const bool odd = lane % 2;
  const uint32_t others = __shfl_xor_sync(0xffffffffu, odd ? low : high, 1);
  token += lane / 4, row += lane % 4 / 2 * 4 + (odd ? 8 : 0);
  if (__nv_bfloat16* to = at(token, row)) *reinterpret_cast<uint2*>(to) = odd ? make_uint2(others, high) : make_uint2(low, others);
}

template <class U, class At>
__device__ __forceinline__ void store_sums(const Sums<U>& sum, int64_t token, int row, At at) {
#pragma unroll
  for (int n = 0; n < U::NT; ++n)
#pragma unroll
    for (int m = 0; m < U::MT; ++m)
      store_tile(make_float4(sum[m][n][0], sum[m][n][1], sum[m][n][2], sum[m][n][3]), token + 8 * n, row + 16 * m, at);
}

// Sums of segments in global memory, as the threads hold them: [segment][BLOCKS of 8 tokens][16 rows of N][lane][4].
// `arrived`, [BLOCKS][16 rows of N], is zero before and after; a warp counts at its first.
struct Parts {
  float* sums;
  int32_t* arrived;
  int blocks;
};

// Leaves this segment's sums; the last of the segments adds them in order and stores the result. The sums come back through
// the ring, all on their way at once. By all consumers.
template <class U, class S, class At>
__device__ __forceinline__ void share_sums(const Sums<U>& sum, const Parts& parts, int token, int row, int M, int N, At at) {
  constexpr int WARPS = U::WR * U::WT, TILES = U::MT * U::NT;
  static_assert(WARPS * TILES * U::SEGS * 512 <= S::RING_COUNT, "the ring holds the tile's segments");
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, rows = (N + 15) / 16, place = token / 8 * rows + row / 16;
  const int64_t segment = int64_t(parts.blocks) * rows * 32;
  float4* first = reinterpret_cast<float4*>(parts.sums) + int64_t(place) * 32 + lane;
  const auto live = [=](int m, int n) { return token + 8 * n < M && row + 16 * m < N; };
#pragma unroll
  for (int n = 0; n < U::NT; ++n)
#pragma unroll
    for (int m = 0; m < U::MT; ++m)
      if (live(m, n))
        first[blockIdx.x * segment + (n * rows + m) * 32] =
            make_float4(sum[m][n][0], sum[m][n][1], sum[m][n][2], sum[m][n][3]);
  int last = 0;
  __syncwarp();
  if (lane == 0 && live(0, 0)) {
    last = ptx::add_acquire_release(parts.arrived + place, 1) == U::SEGS - 1;
    if (last) parts.arrived[place] = 0;
  }
  ptx::named_barrier<32 * WARPS>(1);  // the ring is free
  if (!__shfl_sync(0xffffffffu, last, 0)) return;
  float4* room = reinterpret_cast<float4*>(S::ring()) + warp * TILES * U::SEGS * 32 + lane;
#pragma unroll
  for (int n = 0; n < U::NT; ++n)
#pragma unroll
    for (int m = 0; m < U::MT; ++m)
#pragma unroll
      for (int i = 0; i < U::SEGS; ++i)
        if (live(m, n))
          ptx::copy16(ptx::shared_address(room + ((n * U::MT + m) * U::SEGS + i) * 32), first + i * segment + (n * rows + m) * 32);
  ptx::copy_commit();
  ptx::copy_wait<0>();
#pragma unroll
  for (int n = 0; n < U::NT; ++n)
#pragma unroll
    for (int m = 0; m < U::MT; ++m) {
      if (!live(m, n)) continue;
      const float4* part = room + (n * U::MT + m) * U::SEGS * 32;
      float4 total = part[0];
#pragma unroll
      for (int i = 1; i < U::SEGS; ++i) {
        const float4 next = part[i * 32];
        total.x += next.x, total.y += next.y, total.z += next.z, total.w += next.w;
      }
      store_tile(total, token + 8 * n, row + 16 * m, at);
    }
}

}  // namespace gemm
}  // namespace kd
