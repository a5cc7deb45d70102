// Products of a warpgroup with both operands in shared memory, and copies into the shared memory of all CTAs of a cluster: sm_90a
// only (PTX ISA: wgmma.mma_async, cp.async.bulk.tensor .multicast).
#pragma once

#include "ptx/tensor.cuh"
#include "ptx/wgmma.cuh"

namespace kd::ptx {

// A block of rows of 64 bf16 as tensor maps leave it (PTX ISA: matrix descriptor): rows of 128 bytes, eight of them 1024 apart,
// their vectors permuted. `address` is a multiple of 1024; 16 values of k further on is 2 more.
__device__ __forceinline__ uint64_t block_operand(uint32_t address) {
  return uint64_t(1) << 62 | uint64_t(1024 >> 4) << 32 | uint64_t(1) << 16 | (address & 0x3ffff) >> 4;
}

// sum[64][8 * TILES] += a[64][16] * b[8 * TILES][16]^T, bf16 in, f32 sums: warp w of the group holds rows 16w to 16w + 15, and of
// each eight columns what `mma_16816_bf16` holds. Runs on until it is waited for.
#define KD_SUMS(n) "+f"(sum[n][0]), "+f"(sum[n][1]), "+f"(sum[n][2]), "+f"(sum[n][3])
#define KD_SUMS_3 KD_SUMS(0), KD_SUMS(1), KD_SUMS(2)
#define KD_SUMS_5 KD_SUMS_3, KD_SUMS(3), KD_SUMS(4)
#define KD_SUMS_7 KD_SUMS_5, KD_SUMS(5), KD_SUMS(6)
#define KD_SUMS_8 KD_SUMS_7, KD_SUMS(7)
#define KD_SUMS_9 KD_SUMS_8, KD_SUMS(8)
#define KD_SUMS_11 KD_SUMS_9, KD_SUMS(9), KD_SUMS(10)
#define KD_SUMS_12 KD_SUMS_11, KD_SUMS(11)
#define KD_SUMS_14 KD_SUMS_12, KD_SUMS(12), KD_SUMS(13)
#define KD_SUMS_17 KD_SUMS_14, KD_SUMS(14), KD_SUMS(15), KD_SUMS(16)
#define KD_SUMS_22 KD_SUMS_17, KD_SUMS(17), KD_SUMS(18), KD_SUMS(19), KD_SUMS(20), KD_SUMS(21)
#define KD_TEN(t) "%" #t "0,%" #t "1,%" #t "2,%" #t "3,%" #t "4,%" #t "5,%" #t "6,%" #t "7,%" #t "8,%" #t "9,"
#define KD_10 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,"
#define KD_40 KD_10 KD_TEN(1) KD_TEN(2) KD_TEN(3)
#define KD_NAMES_3 KD_10 "%10,%11"
#define KD_NAMES_5 KD_10 "%10,%11,%12,%13,%14,%15,%16,%17,%18,%19"
#define KD_NAMES_7 KD_10 KD_TEN(1) "%20,%21,%22,%23,%24,%25,%26,%27"
#define KD_NAMES_8 KD_10 KD_TEN(1) KD_TEN(2) "%30,%31"
#define KD_NAMES_9 KD_10 KD_TEN(1) KD_TEN(2) "%30,%31,%32,%33,%34,%35"
#define KD_NAMES_11 KD_40 "%40,%41,%42,%43"
#define KD_NAMES_12 KD_40 "%40,%41,%42,%43,%44,%45,%46,%47"
#define KD_NAMES_14 KD_40 KD_TEN(4) "%50,%51,%52,%53,%54,%55"
#define KD_NAMES_17 KD_40 KD_TEN(4) KD_TEN(5) "%60,%61,%62,%63,%64,%65,%66,%67"
#define KD_NAMES_22 KD_40 KD_TEN(4) KD_TEN(5) KD_TEN(6) KD_TEN(7) "%80,%81,%82,%83,%84,%85,%86,%87"
#define KD_GROUP_MULTIPLY(tiles, columns, a_name, b_name)                                                              \
  __device__ __forceinline__ void group_multiply(float (&sum)[tiles][4], uint64_t a, uint64_t b) {                     \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32.bf16.bf16 {" KD_NAMES_##tiles "}, " a_name      \
                 ", " b_name ", 1, 1, 1, 0, 0;"                                                                        \
                 : KD_SUMS_##tiles                                                                                     \
                 : "l"(a), "l"(b));                                                                                    \
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
#undef KD_NAMES_3
#undef KD_SUMS_3
#undef KD_NAMES_5
#undef KD_SUMS_5
#undef KD_NAMES_7
#undef KD_SUMS_7
#undef KD_NAMES_8
#undef KD_SUMS_8
#undef KD_NAMES_9
#undef KD_SUMS_9
#undef KD_NAMES_11
#undef KD_SUMS_11
#undef KD_NAMES_12
#undef KD_SUMS_12
#undef KD_NAMES_14
#undef KD_SUMS_14
#undef KD_NAMES_17
#undef KD_SUMS_17
#undef KD_NAMES_22
#undef KD_SUMS_22
#undef KD_10
#undef KD_40
#undef KD_TEN
#undef KD_SUMS

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
