// Reading as fast as the device can: chunks of neighbouring vectors, several in flight in each thread.
#pragma once

#include "kd/base.cuh"
#include "ptx/memory.cuh"
#include "ptx/pdl.cuh"

namespace kd {

template <class U, class S>
__device__ __forceinline__ void expert_read(const uint32_t* w, const int32_t* plan, const int32_t* entries, uint32_t* found,
                                            int V, int E) {
  constexpr int CHUNK = U::THREADS * U::EACH;
  ptx::grid_dependency_wait();
  ptx::grid_dependency_launch();
  const int vecs = V / E * (U::H / 4), chunks = (vecs + CHUNK - 1) / CHUNK;
  const int64_t total = int64_t(ptx::load4(plan)) * chunks;
  uint32_t sum = 0;
  for (int64_t chunk = blockIdx.x; chunk < total; chunk += gridDim.x) {
    const int64_t expert = ptx::load4(entries + 4 * (chunk / chunks));
    const int first = int(chunk % chunks) * CHUNK + int(threadIdx.x);
    uint4 v[U::EACH] = {};
#pragma unroll
    for (int i = 0; i < U::EACH; ++i)
      if (first + i * U::THREADS < vecs) v[i] = ptx::load16_constant(w + 4 * (expert * vecs + first + i * U::THREADS));
#pragma unroll
    for (int i = 0; i < U::EACH; ++i) sum ^= v[i].x ^ v[i].y ^ v[i].z ^ v[i].w;
  }
  if (sum == 0x9e3779b9u) *found = sum;
}

}  // namespace kd
