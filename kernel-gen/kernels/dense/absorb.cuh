// One product a head, between the query or output of a head and the latent space that all heads share.
#pragma once

#include "dense/gemm.cuh"

namespace kd {
namespace gemm {

template <class U, class S>
__device__ __forceinline__ void heads(const __nv_bfloat16* x, const __nv_bfloat16* w, __nv_bfloat16* y, int M) {
  const int head = blockIdx.z / U::TILES;
  __nv_bfloat16* own = y + int64_t(head) * U::Y_WIDTH;
  product<U, S>(x + int64_t(head) * U::X_WIDTH, w + int64_t(head) * U::N * U::K, M, U::N, blockIdx.z % U::TILES,
                [own](int64_t token, int row, float4 sum) {
                  if (row < U::N) store4(own + token * (U::HEADS * U::Y_WIDTH) + row, sum);
                });
}

}  // namespace gemm

template <class U, class S>
__device__ __forceinline__ void absorb_query(const __nv_bfloat16* q, const __nv_bfloat16* w, __nv_bfloat16* y, int M) {
  gemm::heads<U, S>(q, w, y, M);
}

template <class U, class S>
__device__ __forceinline__ void absorb_value(const __nv_bfloat16* o, const __nv_bfloat16* w, __nv_bfloat16* y, int M) {
  gemm::heads<U, S>(o, w, y, M);
}

}  // namespace kd
