// Products of token rows and one weight matrix.
#pragma once

#include "dense/gemm.cuh"

namespace kd {

template <class U, class S>
__device__ __forceinline__ void dense(const __nv_bfloat16* x, const __nv_bfloat16* w, __nv_bfloat16* y, int M, int N) {
  gemm::product<U, S>(x, w, M, N, blockIdx.z, [y, N](int64_t token, int row, float4 sum) {
    if (row < N) gemm::store4(y + token * N + row, sum);
  });
}

}  // namespace kd
