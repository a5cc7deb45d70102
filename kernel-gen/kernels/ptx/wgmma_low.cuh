// Products of a warpgroup with both operands in shared memory, which are named by 32 bits: what else a descriptor says is known,
// and takes no registers (PTX ISA: wgmma, matrix descriptor). sm_90a alone has them.
#pragma once

#include "ptx/wgmma_f16.cuh"

namespace kd::ptx {

// A block of rows of 64 bf16 as tensor maps leave it: rows of 128 bytes, eight of them 1024 apart, their vectors permuted. `address` is
// a multiple of 1024; 16 values of k further on is 2 more.
__device__ __forceinline__ uint32_t low_of_rows(uint32_t address) { return 1 << 16 | (address & 0x3ffff) >> 4; }
// The same where rows are those of k: 16 of them further on is 128 more, 64 columns are `next` bytes.
__device__ __forceinline__ uint32_t low_of_columns(uint32_t address, uint32_t next) { return next >> 4 << 16 | (address & 0x3ffff) >> 4; }

#define KD_LOW(a, b) "{\n\t.reg .b64 a, b;\n\tmov.b64 a, {" a ", 0x40000040};\n\tmov.b64 b, {" b ", 0x40000040};\n\t"

// d[64][64] = a[64][16] * b[64][16]^T, or that added to d: bf16 in, f32 sums, which lie as those of wgmma_add. Both are low_of_rows.
__device__ __forceinline__ void wgmma_set_low(float (&d)[8][4], uint32_t a, uint32_t b) {
  asm volatile(KD_LOW("%32", "%33") ".reg .pred add;\n\tsetp.ne.u32 add, 0, 0;\n\t"
                                    "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" KD_D8 "}, a, b, add, 1, 1, 0, 0;\n\t}"
               : KD_O8(KD_SET)
               : "r"(a), "r"(b));
}
__device__ __forceinline__ void wgmma_add_low(float (&d)[8][4], uint32_t a, uint32_t b) {
  asm volatile(KD_LOW("%32", "%33") "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" KD_D8 "}, a, b, 1, 1, 1, 0, 0;\n\t}"
               : KD_O8(KD_ADD)
               : "r"(a), "r"(b));
}
// d[64][128] += a[64][16] * b[16][128]: `a` is low_of_rows, `b` low_of_columns.
__device__ __forceinline__ void wgmma_add_low(float (&d)[16][4], uint32_t a, uint32_t b) {
  asm volatile(KD_LOW("%64", "%65") "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" KD_D16 "}, a, b, 1, 1, 1, 0, 1;\n\t}"
               : KD_O16(KD_ADD)
               : "r"(a), "r"(b));
}
// d[64][8] = a[64][16] * b[8][16]^T, or that added to d. Both are low_of_rows.
__device__ __forceinline__ void wgmma_set_low(float (&d)[4], uint32_t a, uint32_t b) {
  asm volatile(KD_LOW("%4", "%5") ".reg .pred add;\n\tsetp.ne.u32 add, 0, 0;\n\t"
                                  "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0, %1, %2, %3}, a, b, add, 1, 1, 0, 0;\n\t}"
               : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
               : "r"(a), "r"(b));
}
__device__ __forceinline__ void wgmma_add_low(float (&d)[4], uint32_t a, uint32_t b) {
  asm volatile(KD_LOW("%4", "%5") "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0, %1, %2, %3}, a, b, 1, 1, 1, 0, 0;\n\t}"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a), "r"(b));
}
// d[64][8] += a[16][64]^T * b[8][16]^T: `a` is low_of_columns, `b` low_of_rows.
__device__ __forceinline__ void wgmma_add_low_columns(float (&d)[4], uint32_t a, uint32_t b) {
  asm volatile(KD_LOW("%4", "%5") "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0, %1, %2, %3}, a, b, 1, 1, 1, 1, 0;\n\t}"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a), "r"(b));
}
#undef KD_LOW

}  // namespace kd::ptx
