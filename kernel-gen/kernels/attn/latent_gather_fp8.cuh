// Prompt chunks: gathering a block of cache entries from FP8 pages.
#pragma once

#include "cache/fp8.cuh"
#include "ptx/pdl.cuh"

namespace kd {

template <class U, class S>
__device__ __forceinline__ void latent_gather_fp8(const uint8_t* pages, const int32_t* table, const __nv_bfloat16* own,
                                                  int committed, int first, __nv_bfloat16* entries, int X, int P, int M, int T) {
  ptx::grid_dependency_wait();
  ptx::grid_dependency_launch();
  for (int i = threadIdx.x; i < U::ROWS * U::VECS; i += U::THREADS) {
    const int row = blockIdx.x * U::ROWS + i / U::VECS, vec = i % U::VECS, token = first + row;
    if (row >= T) return;
    const bool paged = token < committed;
    const int page = paged && token / 64 < P ? ptx::load4(table + token / 64) : -1;
    const bool there = paged ? page >= 0 && page < X : token - committed < M;
    Bf16x8 value = {{0x7fff7fffu, 0x7fff7fffu, 0x7fff7fffu, 0x7fff7fffu}};
    if (there && !paged) value = load8(own, int64_t(token - committed) * U::VECS + vec);
    if (there && paged) {
      const uint8_t* entry = pages + (int64_t(page) * 64 + token % 64) * U::ENTRY;
      if (vec < U::CVECS) {
        const float2 codes = ptx::load8f(reinterpret_cast<const float*>(entry + 8 * vec));
        const float scale = ptx::load4f(reinterpret_cast<const float*>(entry + U::C + 2 * U::R));
        value = fp8::decode8(make_uint2(__float_as_uint(codes.x), __float_as_uint(codes.y)), fp8::factor(scale));
      } else {
        value = load8(reinterpret_cast<const __nv_bfloat16*>(entry + U::C), vec - U::CVECS);
      }
    }
    store8(entries, int64_t(row) * U::VECS + vec, value);
  }
}

}  // namespace kd
