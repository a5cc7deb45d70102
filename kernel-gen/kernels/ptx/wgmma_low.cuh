// Products of a warpgroup with both operands in shared memory, which are named by 32 bits: what else a descriptor says is known,
// and takes no registers (PTX ISA: wgmma, matrix descriptor). sm_90a alone has them.
#pragma once

#include "ptx/wgmma.cuh"
#include "ptx/wgmma_sums.cuh"

namespace kd::ptx {

#define KD_LOW(a, b, high) "{\n\t.reg .b64 a, b;\n\tmov.b64 a, {" a ", " high "};\n\tmov.b64 b, {" b ", " high "};\n\t"

// d[64][64] = a[64][16] * b[64][16]^T, or that added to d: bf16 in, f32 sums, which lie as those of wgmma_add. Both are low_of_rows.
__device__ __forceinline__ void wgmma_set_low(float (&d)[8][4], uint32_t a, uint32_t b) {
  asm volatile(KD_LOW("%32", "%33", "%34") ".reg .pred add;\n\tsetp.ne.u32 add, 0, 0;\n\t"
                                    "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" KD_D8 "}, a, b, add, 1, 1, 0, 0;\n\t}"
               : KD_O8(KD_SET)
               : "r"(a), "r"(b), "n"(WGMMA_HIGH));
}
__device__ __forceinline__ void wgmma_add_low(float (&d)[8][4], uint32_t a, uint32_t b) {
  asm volatile(KD_LOW("%32", "%33", "%34") "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" KD_D8 "}, a, b, 1, 1, 1, 0, 0;\n\t}"
               : KD_O8(KD_ADD)
               : "r"(a), "r"(b), "n"(WGMMA_HIGH));
}
// d[64][128] += a[64][16] * b[16][128]: `a` is low_of_rows, `b` low_of_columns.
__device__ __forceinline__ void wgmma_add_low(float (&d)[16][4], uint32_t a, uint32_t b) {
  asm volatile(KD_LOW("%64", "%65", "%66") "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" KD_D16 "}, a, b, 1, 1, 1, 0, 1;\n\t}"
               : KD_O16(KD_ADD)
               : "r"(a), "r"(b), "n"(WGMMA_HIGH));
}
// d[64][8] = a[64][16] * b[8][16]^T, or that added to d. Both are low_of_rows.
__device__ __forceinline__ void wgmma_set_low(float (&d)[4], uint32_t a, uint32_t b) {
  asm volatile(KD_LOW("%4", "%5", "%6") ".reg .pred add;\n\tsetp.ne.u32 add, 0, 0;\n\t"
                                  "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0, %1, %2, %3}, a, b, add, 1, 1, 0, 0;\n\t}"
               : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
               : "r"(a), "r"(b), "n"(WGMMA_HIGH));
}
__device__ __forceinline__ void wgmma_add_low(float (&d)[4], uint32_t a, uint32_t b) {
  asm volatile(KD_LOW("%4", "%5", "%6") "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0, %1, %2, %3}, a, b, 1, 1, 1, 0, 0;\n\t}"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a), "r"(b), "n"(WGMMA_HIGH));
}
// d[64][8] += a[16][64]^T * b[8][16]^T: `a` is low_of_columns, `b` low_of_rows.
__device__ __forceinline__ void wgmma_add_low_columns(float (&d)[4], uint32_t a, uint32_t b) {
  asm volatile(KD_LOW("%4", "%5", "%6") "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0, %1, %2, %3}, a, b, 1, 1, 1, 1, 0;\n\t}"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a), "r"(b), "n"(WGMMA_HIGH));
}
#undef KD_LOW

}  // namespace kd::ptx
