// Products of a warpgroup with both operands in shared memory, and copies into the shared memory of all CTAs of a cluster: sm_90a
// only (PTX ISA: wgmma.mma_async, cp.async.bulk.tensor .multicast).
#pragma once

#include "ptx/tensor.cuh"
#include "ptx/wgmma.cuh"
#include "ptx/wgmma_sums.cuh"

namespace kd::ptx {

// d[64][8 * TILES] += a[64][16] * b[8 * TILES][16]^T, bf16 in, f32 sums: warp w of the group holds rows 16w to 16w + 15, and of
// each eight columns what `mma_16816_bf16` holds. Runs on until it is waited for.
#define KD_GROUP_MULTIPLY(tiles, columns, a_name, b_name)                                                          \
  __device__ __forceinline__ void group_multiply(float (&d)[tiles][4], uint64_t a, uint64_t b) {                   \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32.bf16.bf16 {" KD_D##tiles "}, " a_name       \
                 ", " b_name ", 1, 1, 1, 0, 0;"                                                                    \
                 : KD_O##tiles(KD_ADD)                                                                             \
                 : "l"(a), "l"(b));                                                                                \
  }
KD_GROUP_MULTIPLY(3, 24, "%12", "%13")
KD_GROUP_MULTIPLY(5, 40, "%20", "%21")
KD_GROUP_MULTIPLY(7, 56, "%28", "%29")
KD_GROUP_MULTIPLY(8, 64, "%32", "%33")
KD_GROUP_MULTIPLY(9, 72, "%36", "%37")
KD_GROUP_MULTIPLY(11, 88, "%44", "%45")
KD_GROUP_MULTIPLY(12, 96, "%48", "%49")
KD_GROUP_MULTIPLY(14, 112, "%56", "%57")
KD_GROUP_MULTIPLY(17, 136, "%68", "%69")
KD_GROUP_MULTIPLY(22, 176, "%88", "%89")
#undef KD_GROUP_MULTIPLY

// As `tensor_load`, to the same place in every CTA of the cluster whose bit is in `ctas`; the barrier in the same place of each
// counts the bytes that it gets.
__device__ __forceinline__ void tensor_load_all(void* to, const TensorMap& map, int column, int row, uint64_t* barrier,
                                                uint16_t ctas) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
      "[%1, {%2, %3}], [%4], %5;" ::"r"(shared_address(to)),
      "l"(&map), "r"(column), "r"(row), "r"(shared_address(barrier)), "h"(ctas)
      : "memory");
}

// Has the map at hand when a copy asks for it.
__device__ __forceinline__ void tensor_map_ahead(const TensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

// Arrives at the barrier in this place of CTA `rank` of the cluster. Without a scope, for a fence of the cluster's would wait for
// all memory: only reads that have been waited for come before.
__device__ __forceinline__ void barrier_arrive_at(uint64_t* barrier, int rank) {
  asm volatile(
      "{\n\t.reg .u32 there;\n\tmapa.shared::cluster.u32 there, %0, %1;\n\t"
      "mbarrier.arrive.shared::cluster.b64 _, [there];\n\t}" ::"r"(shared_address(barrier)),
      "r"(rank)
      : "memory");
}

}  // namespace kd::ptx
