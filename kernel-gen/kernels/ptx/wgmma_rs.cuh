// Tensor-core products of a warpgroup, 128 threads, that run beside them: one operand in registers, one in shared memory (PTX ISA:
// wgmma). sm_90a alone has them.
#pragma once

#include "ptx/wgmma.cuh"
#include "ptx/wgmma_sums.cuh"

namespace kd::ptx {

// As the other `pin`, for the operand in registers.
__device__ __forceinline__ void pin(uint32_t (&a)[4]) {
  asm volatile("" : "+r"(a[0]), "+r"(a[1]), "+r"(a[2]), "+r"(a[3])::"memory");
}

// d[64][8 NT] = a[64][16] * b[16][8 NT], or that added to d: bf16 in, f32 sums. Warp w of the four has rows 16 w to 16 w + 15 of `a` and
// `d`, as mma_16816_bf16 has them (tile j of 8 columns in d[j]); `b` is what wgmma_rows says, 8 NT rows of k.
template <int NT>
__device__ void wgmma_set(float (&d)[NT][4], const uint32_t (&a)[4], uint64_t b);
template <int NT>
__device__ void wgmma_add(float (&d)[NT][4], const uint32_t (&a)[4], uint64_t b);

#define KD_WGMMA_AS(NAME, IO, ADD, NT, N, A0, A1, A2, A3, B)                                                         \
  template <>                                                                                                        \
  __device__ __forceinline__ void NAME<NT>(float (&d)[NT][4], const uint32_t (&a)[4], uint64_t b) {                  \
    asm volatile("{\n\t.reg .pred add;\n\tsetp.ne.u32 add, " #ADD ", 0;\n\t"                                          \
                 "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" KD_D##NT "}, {%" #A0 ", %" #A1 ", %" #A2 \
                 ", %" #A3 "}, %" #B ", add, 1, 1, 0;\n\t}"                                                          \
                 : KD_O##NT(IO)                                                                                      \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                                              \
  }
#define KD_WGMMA(...)                                \
  KD_WGMMA_AS(wgmma_set, KD_SET, 0, __VA_ARGS__)     \
  KD_WGMMA_AS(wgmma_add, KD_ADD, 1, __VA_ARGS__)
KD_WGMMA(1, 8, 4, 5, 6, 7, 8)
KD_WGMMA(2, 16, 8, 9, 10, 11, 12)
KD_WGMMA(3, 24, 12, 13, 14, 15, 16)
KD_WGMMA(4, 32, 16, 17, 18, 19, 20)
KD_WGMMA(5, 40, 20, 21, 22, 23, 24)
KD_WGMMA(6, 48, 24, 25, 26, 27, 28)
KD_WGMMA(7, 56, 28, 29, 30, 31, 32)
KD_WGMMA(8, 64, 32, 33, 34, 35, 36)

// d[64][128] += a[64][16] * b[16][128], as wgmma_add; `b` is what wgmma_columns says, and 16 rows of k further is 128 more.
__device__ __forceinline__ void wgmma_add_columns(float (&d)[16][4], const uint32_t (&a)[4], uint64_t b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" KD_D16 "}, {%64, %65, %66, %67}, %68, 1, 1, 1, 1;"
               : KD_O16(KD_ADD)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

}  // namespace kd::ptx
