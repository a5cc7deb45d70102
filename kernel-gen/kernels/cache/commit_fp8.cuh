// Accepted latents from scratch rows into FP8 pages. A warp moves one token of one layer.
#pragma once

#include "cache/fp8.cuh"
#include "ptx/pdl.cuh"

namespace kd {

template <class U, class S_>
__device__ __forceinline__ void commit_fp8(const __nv_bfloat16* scratch, const int32_t* from, const int32_t* to, uint8_t* pages,
                                           int L, int S, int K, int T) {
  const int lane = threadIdx.x % 32;
  const int64_t layer = int64_t(blockIdx.y) * U::LAYERS + threadIdx.x / 32;
  ptx::grid_dependency_wait();
  const int64_t source = ptx::load4(from + blockIdx.x), target = ptx::load4(to + blockIdx.x);
  const bool live = source >= 0 && source < S && target >= 0 && target < T && layer < L;
  const int64_t first = (layer * S + source) * (U::CVECS + U::RVECS);
  float latent[U::OWN][8] = {};
  Bf16x8 key = {};
  uint32_t most = 0;
#pragma unroll
  for (int i = 0; i < U::OWN; ++i) {
    if (live && lane + 32 * i < U::CVECS) widen8(load8(scratch, first + lane + 32 * i), latent[i]);
#pragma unroll
    for (int j = 0; j < 8; ++j) most = ::max(most, fp8::magnitude(latent[i][j]));
  }
  if (live && lane < U::RVECS) key = load8(scratch, first + U::CVECS + lane);
  ptx::grid_dependency_launch();
  const auto scale = fp8::Scale::of(__reduce_max_sync(0xffffffffu, most));
  if (!live) return;
  uint8_t* entry = pages + (layer * T + target) * U::ENTRY;
#pragma unroll
  for (int i = 0; i < U::OWN; ++i)
    if (lane + 32 * i < U::CVECS)
      *reinterpret_cast<uint2*>(entry + 8 * (lane + 32 * i)) = fp8::encode8(latent[i], scale.inverse);
  if (lane < U::RVECS) store8(reinterpret_cast<__nv_bfloat16*>(entry + U::C), lane, key);
  if (lane == 0)
    *reinterpret_cast<uint4*>(entry + U::C + 2 * U::R) = make_uint4(__float_as_uint(scale.value), 0, 0, 0);
}

}  // namespace kd
