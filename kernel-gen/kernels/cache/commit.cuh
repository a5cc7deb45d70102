// Accepted latents from scratch rows into pages. A CTA moves one token of LAYERS layers, all loads in flight at once.
#pragma once

#include "kd/vec.cuh"
#include "ptx/pdl.cuh"

namespace kd {

template <class U, class S_>
__device__ __forceinline__ void commit(const __nv_bfloat16* scratch, const int32_t* from, const int32_t* to,
                                       __nv_bfloat16* pages, int L, int S, int K, int T) {
  const int vec = threadIdx.x;
  ptx::grid_dependency_wait();
  const int64_t source = ptx::load4(from + blockIdx.x), target = ptx::load4(to + blockIdx.x);
  const bool live = source >= 0 && source < S && target >= 0 && target < T && vec < U::VECS;
  Bf16x8 value[U::LAYERS] = {};
#pragma unroll
  for (int i = 0; i < U::LAYERS; ++i) {
    const int64_t layer = int64_t(blockIdx.y) * U::LAYERS + i;
    if (live && layer < L) value[i] = load8(scratch, (layer * S + source) * U::VECS + vec);
  }
  ptx::grid_dependency_launch();
#pragma unroll
  for (int i = 0; i < U::LAYERS; ++i) {
    const int64_t layer = int64_t(blockIdx.y) * U::LAYERS + i;
    if (live && layer < L) store8(pages, (layer * T + target) * U::VECS + vec, value[i]);
  }
}

}  // namespace kd
