// Folded scales: an INT4 weight with its scale as one f16, which the tensor core multiplies straight through K.
//
// (q - 8) s has at most 11 significant bits, so f16 holds it where the exponent fits. An integer n < 1024 in a half word *is* the f16
// n * 2^-24 (the subnormals and the first binade have one spacing), so codes become f16 by one `and`: q, or 16 q where they stand four
// bits higher. One multiply-add then takes the offset off and multiplies by the scale, with one rounding.
//
// Scales of a row of weights carry a power of two by which the largest comes to [2^15, 2^16): with b its biased exponent ("exps"),
//   S = f16(s * 2^(142 - b)),  w16 = f16(q * 2^-24 * S - S * 2^-21) = (q - 8) s 2^(118 - b),
// exact for scales from 2^-8 of the row's largest, else with an absolute error of at most 2^-24: 2^-19 of the row's largest weights.
#pragma once

#include <cuda_fp16.h>

#include "kd/base.cuh"

namespace kd {
namespace moe {

constexpr int FOLD_CODES = 142, FOLD_SUMS = 118;

// 2^(exponent - 127).
__device__ __forceinline__ float power_of_two(int exponent) { return __int_as_float(exponent << 23); }

// What brings the scales of two rows to f16, as a pair of bf16: 2^(142 - b) of their exponents.
__device__ __forceinline__ uint32_t fold_lift(uint32_t low, uint32_t high) {
  return (FOLD_CODES + 127 - low) << 7 | (FOLD_CODES + 127 - high) << 23;
}

// By what a row's sums are multiplied to become what they are.
__device__ __forceinline__ float fold_lower(uint32_t exponent) { return power_of_two(int(exponent) + 127 - FOLD_SUMS); }

// A pair of bf16 scales times a pair of powers of two.
__device__ __forceinline__ uint32_t lifted_scales(uint32_t scales, uint32_t lift) {
  const __nv_bfloat162 product = __hmul2(reinterpret_cast<const __nv_bfloat162&>(scales), reinterpret_cast<const __nv_bfloat162&>(lift));
  return reinterpret_cast<const uint32_t&>(product);
}

__device__ __forceinline__ uint32_t half_fma(uint32_t a, __half2 b, __half2 c) {
  const __half2 sum = __hfma2(reinterpret_cast<const __half2&>(a), b, c);
  return reinterpret_cast<const uint32_t&>(sum);
}

// What the words of rows g and g + 8 of one group are multiplied with: S, S / 16 and -8 S of either row, in the halves of a register.
struct FoldedScales {
  __half2 scale, high, start;
};

// From S of both as bf16.
__device__ __forceinline__ FoldedScales folded_scales(uint32_t scales) {
  const __half2 scale = __floats2half2_rn(__uint_as_float(scales << 16), __uint_as_float(scales & 0xffff0000u));
  return {scale, __hmul2(scale, __float2half2_rn(0x1p-4f)), __hmul2(scale, __float2half2_rn(-0x1p-21f))};
}

// The eight weights of a word of row g (`UPPER` false) or g + 8 as pairs that meet values 0 1, 2 3, 4 5, 6 7.
template <bool UPPER>
__device__ __forceinline__ void folded_pairs(uint32_t word, const FoldedScales& of, uint32_t (&pair)[4]) {
  const auto own = [](__half2 v) { return UPPER ? __high2half2(v) : __low2half2(v); };
  const __half2 s = own(of.scale), high = own(of.high), start = own(of.start);
  const uint32_t shifted = word >> 8;
  pair[0] = half_fma(word & 0x000f000fu, s, start), pair[1] = half_fma(word & 0x00f000f0u, high, start);
  pair[2] = half_fma(shifted & 0x000f000fu, s, start), pair[3] = half_fma(shifted & 0x00f000f0u, high, start);
}

}  // namespace moe
}  // namespace kd
