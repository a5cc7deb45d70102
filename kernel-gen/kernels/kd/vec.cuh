// Eight bf16 values as one 16-byte access.
#pragma once

#include "kd/base.cuh"
#include "ptx/memory.cuh"

namespace kd {

// Two values in each word, the lower index in the lower half.
struct Bf16x8 {
  uint32_t word[4];
};

__device__ __forceinline__ Bf16x8 from_words(uint4 v) { return Bf16x8{{v.x, v.y, v.z, v.w}}; }

// Vector `index` of `base`, which is 16-byte aligned. The 64-bit index keeps rows beyond 2^31 elements right.
__device__ __forceinline__ Bf16x8 load8(const __nv_bfloat16* base, int64_t index) {
  return from_words(ptx::load16(base + 8 * index));
}

__device__ __forceinline__ Bf16x8 load8_constant(const __nv_bfloat16* base, int64_t index) {
  return from_words(ptx::load16_constant(base + 8 * index));
}

__device__ __forceinline__ void store8(__nv_bfloat16* base, int64_t index, const Bf16x8& v) {
  reinterpret_cast<uint4*>(base)[index] = make_uint4(v.word[0], v.word[1], v.word[2], v.word[3]);
}

// A bf16 is the upper half of an f32.
__device__ __forceinline__ void widen8(const Bf16x8& from, float (&to)[8]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    to[2 * i] = __uint_as_float(from.word[i] << 16);
    to[2 * i + 1] = __uint_as_float(from.word[i] & 0xffff0000u);
  }
}

__device__ __forceinline__ Bf16x8 narrow8(const float (&from)[8]) {
  Bf16x8 to;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(from[2 * i], from[2 * i + 1]);
    to.word[i] = uint32_t(__bfloat16_as_ushort(pair.y)) << 16 | __bfloat16_as_ushort(pair.x);
  }
  return to;
}

}  // namespace kd
