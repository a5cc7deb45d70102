// INT4 weights with one bf16 scale for each group of 32 along the last axis (the composite operand int4g32).
#pragma once

#include "kd/base.cuh"

namespace kd {

// The order of words and scales in their blocks is the affair of the template that reads them and of the code that packs
// them.
struct Int4G32 {
  static constexpr int GROUP = 32;
  const uint32_t* blocks;
};

// How a code becomes a bf16 without arithmetic: an integer n < 256 *is* the bf16 n * 2^-133 (the subnormals and the first
// binade have one spacing), so the two codes in the low byte of a half word need one `and` each: q and 16 q. Values that
// meet the codes of the upper half of a byte carry a factor 1/16, all values a factor that brings the products back among
// the normal numbers, and sums are divided by both at the end; all three are powers of two and change no digit.
constexpr float INT4_LIFT = 0x1p64f, INT4_LIFT_HIGH = 0x1p60f, INT4_LOWER = 0x1p69f;

// The factor of value `i` of eight.
__device__ __forceinline__ float int4_lift(int i) { return i & 2 ? INT4_LIFT_HIGH : INT4_LIFT; }

// The same for pair `i` of four.
__device__ __forceinline__ uint32_t int4_lift_pair(uint32_t pair, int i) {
  const __nv_bfloat162 factor = __float2bfloat162_rn(i & 1 ? INT4_LIFT_HIGH : INT4_LIFT);
  const __nv_bfloat162 product = __hmul2(reinterpret_cast<const __nv_bfloat162&>(pair), factor);
  return reinterpret_cast<const uint32_t&>(product);
}

// The eight codes of a word as pairs that meet values 0 1, 2 3, 4 5, 6 7.
__device__ __forceinline__ void int4_pairs(uint32_t word, uint32_t (&pair)[4]) {
  const uint32_t shifted = word >> 8;
  pair[0] = word & 0x000f000fu, pair[1] = word & 0x00f000f0u;
  pair[2] = shifted & 0x000f000fu, pair[3] = shifted & 0x00f000f0u;
}

// Codes are stored with 8 added: pairs of -8 as they meet even and odd pairs.
constexpr uint32_t INT4_BIAS = 0x80088008u, INT4_BIAS_HIGH = 0x80808080u;

}  // namespace kd
