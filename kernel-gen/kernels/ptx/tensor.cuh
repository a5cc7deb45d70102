// Copies of boxes of a matrix into shared memory (PTX ISA: cp.async.bulk.tensor).
#pragma once

#include <stdint.h>

#include "ptx/bulk.cuh"

namespace kd::ptx {

// What a driver makes of a matrix: its address, sizes, box and how boxes are permuted in shared memory (CUDA driver API:
// cuTensorMapEncodeTiled). A parameter of the kernel, `const __grid_constant__`.
struct alignas(64) TensorMap {
  uint64_t opaque[16];
};

// The box whose first value is (row, column); what lies outside of the matrix is zero. `barrier` counts the bytes of a whole box.
__device__ __forceinline__ void tensor_load(void* to, const TensorMap& map, int column, int row, uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(
          shared_address(to)),
      "l"(&map), "r"(column), "r"(row), "r"(shared_address(barrier))
      : "memory");
}

// The same with an L2 policy.
__device__ __forceinline__ void tensor_load(void* to, const TensorMap& map, int column, int row, uint64_t* barrier, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%2, %3}], [%4], "
      "%5;" ::"r"(shared_address(to)),
      "l"(&map), "r"(column), "r"(row), "r"(shared_address(barrier)), "l"(policy)
      : "memory");
}

}  // namespace kd::ptx
