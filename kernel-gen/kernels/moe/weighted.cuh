// The weighted sum of a row's experts: in the order of its choices, one multiply-add each.
#pragma once

#include "kd/base.cuh"

namespace kd {
namespace moe {

__device__ __forceinline__ void add_weighted(float (&sum)[4], float weight, const uint4& part) {
  sum[0] = fmaf(weight, __uint_as_float(part.x), sum[0]), sum[1] = fmaf(weight, __uint_as_float(part.y), sum[1]);
  sum[2] = fmaf(weight, __uint_as_float(part.z), sum[2]), sum[3] = fmaf(weight, __uint_as_float(part.w), sum[3]);
}

}  // namespace moe
}  // namespace kd
