// Conversion to FP8 (PTX ISA: cvt).
#pragma once

#include <stdint.h>

namespace kd::ptx {

// The e4m3 codes nearest to two values, ties to the even one; the first in the lower byte.
__device__ __forceinline__ uint32_t to_e4m3x2(float first, float second) {
  uint16_t codes;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(second), "f"(first));
  return codes;
}

}  // namespace kd::ptx
