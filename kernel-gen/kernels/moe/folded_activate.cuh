// What comes between the two products of folded weights.
#pragma once

#include "moe/folded.cuh"

namespace kd {
namespace moe {

// The exponent by which h is lifted. |silu(g) u| <= |g| |u|, and the logarithm of that is at most `norm`, of the square of the row's
// norm, plus `bound`, of the product of the norms of two rows of gate and up that meet: so h stays under 2^14, a quarter of what f16 holds.
__device__ __forceinline__ int hidden_lift(int norm, int bound) { return ::max(-126, ::min(14 - norm - bound, 126)); }

// silu(gate) * up from sums as the tensor core leaves them, times `lift`. `gate_lower` and `up_lower` are those of the rows of weights,
// `lower` that of the row of values.
__device__ __forceinline__ float folded_activate(float gate_sum, float up_sum, float gate_lower, float up_lower, float lower,
                                                 float lift) {
  const float gate = gate_sum * gate_lower * lower, up = up_sum * up_lower * lower;
  return gate / (1.0f + __expf(-gate)) * up * lift;
}

}  // namespace moe
}  // namespace kd
