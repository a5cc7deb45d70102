// The experts that rows chose, as numbers of this rank.
#pragma once

#include "kd/base.cuh"
#include "ptx/memory.cuh"

namespace kd {
namespace moe {

// The choice at `index` as an expert of this rank, or -1.
template <class U>
__device__ __forceinline__ int choice(const int32_t* ids, int index, int count, int first_expert) {
  if (index >= count) return -1;
  const int64_t expert = int64_t(ptx::load4(ids + index)) - first_expert;
  return expert >= 0 && expert < U::E ? int(expert) : -1;
}

}  // namespace moe
}  // namespace kd
