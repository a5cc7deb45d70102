// Exponents of rows of INT4 weights and bounds of their norms, in whole numbers: kd_moe::gpu::exponents says the same on the CPU.
#pragma once

#include "kd/base.cuh"

namespace kd {
namespace moe {

// Of one row, by one warp.
struct RowSize {
  // The biased exponent of the largest scale, 15 to 245.
  uint32_t exponent;
  // At least the logarithm to base 2 of the sum of squares of the row's weights, if any is not 0.
  int norm;
  bool zero;
};

template <int K>
__device__ __forceinline__ RowSize row_size(const int32_t* codes, const __nv_bfloat16* scales) {
  constexpr int GROUPS = K / 32;
  constexpr uint32_t LEAST = 15, MOST = 245;
  const int lane = threadIdx.x % 32;
  uint32_t exponent = LEAST;
  for (int g = lane; g < GROUPS; g += 32) exponent = ::max(exponent, uint32_t(__bfloat16_as_ushort(scales[g])) >> 7 & 0xffu);
  exponent = ::min(__reduce_max_sync(0xffffffffu, exponent), MOST);
  // In units of 2^(2 (r - 7)), r the exponent: of each group a whole number, rounded up.
  uint64_t sum = 0;
  for (int g = lane; g < GROUPS; g += 32) {
    const uint32_t bits = __bfloat16_as_ushort(scales[g]), field = bits >> 7 & 0xffu, digits = (bits & 0x7fu) | (field > 0 ? 0x80u : 0);
    uint32_t squares = 0;
    for (int word = 0; word < 4; ++word)
      for (int i = 0; i < 8; ++i) {
        const int weight = int(uint32_t(codes[4 * g + word]) >> (4 * i) & 15) - 8;
        squares += weight * weight;
      }
    const uint64_t own = uint64_t(squares) * (digits * digits);
    const uint32_t shift = ::min(2 * (exponent - ::min(::max(field, 1u), exponent)), 63u);
    sum += (own >> shift) + ((own & ((uint64_t(1) << shift) - 1)) != 0);
  }
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
  const int up = sum > 1 ? 64 - __clzll(sum - 1) : 0;
  return {exponent, 2 * (int(exponent) - 127 - 7) + up, sum == 0};
}

}  // namespace moe

template <class U, class S>
__device__ __forceinline__ void moe_exponents(const int32_t* first, const __nv_bfloat16* first_scales, const int32_t* second,
                                              const __nv_bfloat16* second_scales, int32_t paired, uint8_t* exponents, int32_t* bounds,
                                              int32_t expert, int N, int P, int E) {
  const int row = (blockIdx.x * U::THREADS + threadIdx.x) / 32, lane = threadIdx.x % 32;
  if (row >= N) return;
  const int64_t words = int64_t(row) * (U::K / 8), groups = int64_t(row) * (U::K / 32);
  const moe::RowSize own = moe::row_size<U::K>(first + words, first_scales + groups);
  if (!paired) {
    if (lane == 0) exponents[row] = uint8_t(own.exponent);
    return;
  }
  const moe::RowSize other = moe::row_size<U::K>(second + words, second_scales + groups);
  if (lane > 0) return;
  const int place = row / 8 * 16 + row % 8;
  exponents[place] = uint8_t(own.exponent), exponents[place + 8] = uint8_t(other.exponent);
  // Half the sum of both, rounded up.
  if (!own.zero && !other.zero) atomicMax(bounds + expert, (own.norm + other.norm + 1) >> 1);
}

}  // namespace kd
