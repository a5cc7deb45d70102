// The products of wgmma_rs.cuh for f16, of 8 to 128 columns (PTX ISA: wgmma). sm_90a alone has them.
#pragma once

#include "ptx/wgmma_rs.cuh"

namespace kd::ptx {

// d[64][8 NT] += a[64][16] * b[16][8 NT]: f16 in, f32 sums, operands as wgmma_add has them. NT is 1 to 8, or even and up to 16.
template <int NT>
__device__ void wgmma_add_f16(float (&d)[NT][4], const uint32_t (&a)[4], uint64_t b);

#define KD_WGMMA_F16(NT, N, A0, A1, A2, A3, B)                                                                        \
  template <>                                                                                                         \
  __device__ __forceinline__ void wgmma_add_f16<NT>(float (&d)[NT][4], const uint32_t (&a)[4], uint64_t b) {          \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.f16.f16 {" KD_D##NT "}, {%" #A0 ", %" #A1 ", %" #A2  \
                 ", %" #A3 "}, %" #B ", 1, 1, 1, 0;"                                                                  \
                 : KD_O##NT(KD_ADD)                                                                                   \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                                               \
  }
KD_WGMMA_F16(1, 8, 4, 5, 6, 7, 8)
KD_WGMMA_F16(2, 16, 8, 9, 10, 11, 12)
KD_WGMMA_F16(3, 24, 12, 13, 14, 15, 16)
KD_WGMMA_F16(4, 32, 16, 17, 18, 19, 20)
KD_WGMMA_F16(5, 40, 20, 21, 22, 23, 24)
KD_WGMMA_F16(6, 48, 24, 25, 26, 27, 28)
KD_WGMMA_F16(7, 56, 28, 29, 30, 31, 32)
KD_WGMMA_F16(8, 64, 32, 33, 34, 35, 36)
KD_WGMMA_F16(10, 80, 40, 41, 42, 43, 44)
KD_WGMMA_F16(12, 96, 48, 49, 50, 51, 52)
KD_WGMMA_F16(14, 112, 56, 57, 58, 59, 60)
KD_WGMMA_F16(16, 128, 64, 65, 66, 67, 68)
#undef KD_WGMMA_F16

}  // namespace kd::ptx
