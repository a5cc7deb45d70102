// What comes between the two products.
#pragma once

#include "kd/int4.cuh"

namespace kd {
namespace moe {

// silu(gate) * up from sums as the tensor core leaves them, lifted for value `i` of eight.
__device__ __forceinline__ __nv_bfloat16 activate(float gate_sum, float up_sum, int i) {
  const float gate = gate_sum * INT4_LOWER, up = up_sum * INT4_LOWER;
  return __float2bfloat16_rn(gate / (1.0f + __expf(-gate)) * up * int4_lift(i));
}

}  // namespace moe
}  // namespace kd
