// Rotary embedding from a table: row p holds (cos, sin) of every pair at position p, made in f64 on the host.
#pragma once

#include "kd/base.cuh"
#include "ptx/memory.cuh"

namespace kd {

// (cos, sin) of the pairs 4 * index .. 4 * index + 4 at `position`; NaN outside the table of `positions` rows. WIDTH is the
// number of rotated values, two a pair.
template <int WIDTH>
__device__ __forceinline__ void load_angles(const float* table, int position, int positions, int index,
                                            float (&angle)[8]) {
  if (position < 0 || position >= positions) {
#pragma unroll
    for (int i = 0; i < 8; ++i) angle[i] = __int_as_float(0x7fffffff);
    return;
  }
  const float* from = table + int64_t(position) * WIDTH + 8 * index;
#pragma unroll
  for (int i = 0; i < 8; i += 4) {
    const uint4 v = ptx::load16_constant(from + i);
    angle[i] = __uint_as_float(v.x);
    angle[i + 1] = __uint_as_float(v.y);
    angle[i + 2] = __uint_as_float(v.z);
    angle[i + 3] = __uint_as_float(v.w);
  }
}

__device__ __forceinline__ void rotate(float& a, float& b, float cos, float sin) {
  const float turned = a * cos - b * sin;
  b = a * sin + b * cos;
  a = turned;
}

}  // namespace kd
