// Products of token rows and one weight matrix.
#pragma once

#include "dense/gemm.cuh"

namespace kd {

template <class U, class S>
__device__ __forceinline__ void dense(const __nv_bfloat16* x, const __nv_bfloat16* w, __nv_bfloat16* y, float* parts,
                                      int32_t* arrived, int M, int N, int B) {
  const int tile = blockIdx.z;
  if constexpr (U::FEEDERS > 0 && (U::APART || (U::CTAS == 1 && U::GROUPS == 1))) {
    const auto at = [=](int64_t token, int row) { return token < M && row < N ? y + token * N + row : nullptr; };
    gemm::stream<U, S>(x, w, M, N, tile, [=](const gemm::Sums<U>& sum, int, int row, int token) {
      row += tile * U::ROWS, token += blockIdx.y * U::TOKENS;
      if constexpr (U::CTAS > 1)
        gemm::share_sums<U, S>(sum, {parts, arrived, B}, token, row, M, N, at);
      else
        gemm::store_sums<U>(sum, token, row, at);
    });
  } else {
    gemm::product<U, S>(x, w, M, N, tile, [y, N](int64_t token, int row, float4 sum) {
      if (row < N) gemm::store4(y + token * N + row, sum);
    });
  }
}

}  // namespace kd
