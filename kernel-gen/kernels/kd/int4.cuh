// INT4 weights with one bf16 scale for each group of 32 along the last axis (the composite operand int4g32).
#pragma once

#include "kd/base.cuh"
#include "ptx/logic.cuh"

namespace kd {

// The order of words and scales is the affair of the template that reads them and of the code that packs them: eight
// values a word, and as many scales as groups.
struct Int4G32 {
  static constexpr int GROUP = 32;
  const uint32_t* words;
  const __nv_bfloat16* scales;
};

// Code q of bits 4i and 16 + 4i of `word` as a pair of bf16 128 + q, exact: 0x4300 is 128, whose last bit counts 1.
__device__ __forceinline__ uint32_t int4_pair(uint32_t word, int i) {
  return ptx::and_or(word >> (4 * i), 0x000f000fu, 0x43004300u);
}

}  // namespace kd
