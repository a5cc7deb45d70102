// Shapes of a dense product: where its blocks, segments and rows lie.
#pragma once

#include "kd/base.cuh"

namespace kd {
namespace gemm {

// Rows of a slot are STEP values; its vectors of 16 bytes are permuted so that equal vectors of eight consecutive rows lie
// in different banks.
template <class U>
__device__ __forceinline__ uint32_t place(int row, int vector) {
  constexpr int VECS = U::STEP / 8;
  return row * (U::STEP * 2) + ((vector ^ (row / (8 / VECS) % VECS)) << 4);
}

template <class U>
struct Shape {
  static constexpr int ROW_BYTES = U::STEP * 2, BLOCKS = (U::K + U::STEP - 1) / U::STEP;
  static constexpr int WEIGHT_BYTES = U::ROWS * ROW_BYTES, TOKEN_BYTES = U::TOKENS * ROW_BYTES;
  static constexpr int GROUP_BYTES = WEIGHT_BYTES + TOKEN_BYTES, SLOT_BYTES = U::GROUPS * GROUP_BYTES;
  static constexpr int CONSUMERS = 32 * U::WR * U::WT * U::GROUPS;
  // Whether steps end where K does: segments have whole blocks of 64, whatever the step.
  static constexpr bool WHOLE_BLOCKS = U::K % 64 == 0;
  // The first block of segment `segment`: segments are cut at multiples of 64.
  __host__ __device__ static constexpr int first(int segment) {
    return (segment < U::SEGS ? segment * ((U::K + 63) / 64) / U::SEGS : (U::K + 63) / 64) * (64 / U::STEP);
  }
  static constexpr bool EVEN = (U::K + 63) / 64 % U::SEGS == 0 && U::GROUPS * U::RUN * U::CTAS == U::SEGS;
  // Steps of the group with most blocks.
  static constexpr int STEPS =
      (U::RUN == U::SEGS ? (U::K + 63) / 64 : (((U::K + 63) / 64 + U::SEGS - 1) / U::SEGS)) * (64 / U::STEP);
  // Blocks of a group: one segment may have one of 64 more than another.
  __device__ __forceinline__ static int blocks(int group) { return first(segment(group) + U::RUN) - first(segment(group)); }
  // The first segment of a group of this CTA.
  __device__ __forceinline__ static int segment(int group) { return (blockIdx.x * U::GROUPS + group) * U::RUN; }
};

// The sums of a warp: its part of a tile.
template <class U>
using Sums = float[U::MT][U::NT][4];

// The sums of one segment of this warp's part of the tile, or of its RUN segments, in shared memory.
template <class U, class S>
__device__ __forceinline__ void keep(const Sums<U>& sum, int group, int row, int token) {
  const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
  for (int n = 0; n < U::NT; ++n)
#pragma unroll
    for (int m = 0; m < U::MT; ++m)
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const int at_token = token + 8 * n + 2 * t + c % 2, at_row = row + 16 * m + g + 8 * (c / 2);
        reinterpret_cast<float*>(S::ring())[(group * U::TOKENS + at_token) * U::LINE + at_row] = sum[m][n][c];
      }
}

}  // namespace gemm
}  // namespace kd
