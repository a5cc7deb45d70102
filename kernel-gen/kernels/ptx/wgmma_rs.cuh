// Tensor-core products of a warpgroup, 128 threads, that run beside them: one operand in registers, one in shared memory (PTX ISA:
// wgmma). sm_90a alone has them.
#pragma once

#include "ptx/wgmma.cuh"

namespace kd::ptx {

// Where a matrix of bf16 lies in shared memory that has 64 values of k a row, 128 bytes, the eight 16-byte chunks of row r exchanged by
// `chunk ^ r % 8`: `address` is a multiple of 1024. Two more are 16 values of k further.
__device__ __forceinline__ uint64_t wgmma_rows(uint32_t address) {
  // Bits 0 to 13: address / 16; 32 to 45: bytes from 8 rows to the next 8, / 16; 62 and 63: the exchange of chunks.
  return uint64_t(address >> 4 & 0x3fff) | uint64_t(1) << 16 | uint64_t(1024 >> 4) << 32 | uint64_t(1) << 62;
}

// As the other `pin`, for the operand in registers.
__device__ __forceinline__ void pin(uint32_t (&a)[4]) {
  asm volatile("" : "+r"(a[0]), "+r"(a[1]), "+r"(a[2]), "+r"(a[3])::"memory");
}

#define KD_D1 "%0, %1, %2, %3"
#define KD_D2 KD_D1 ", %4, %5, %6, %7"
#define KD_D3 KD_D2 ", %8, %9, %10, %11"
#define KD_D4 KD_D3 ", %12, %13, %14, %15"
#define KD_D5 KD_D4 ", %16, %17, %18, %19"
#define KD_D6 KD_D5 ", %20, %21, %22, %23"
#define KD_D7 KD_D6 ", %24, %25, %26, %27"
#define KD_D8 KD_D7 ", %28, %29, %30, %31"
#define KD_O(IO, j) IO(d[j][0]), IO(d[j][1]), IO(d[j][2]), IO(d[j][3])
#define KD_O1(IO) KD_O(IO, 0)
#define KD_O2(IO) KD_O1(IO), KD_O(IO, 1)
#define KD_O3(IO) KD_O2(IO), KD_O(IO, 2)
#define KD_O4(IO) KD_O3(IO), KD_O(IO, 3)
#define KD_O5(IO) KD_O4(IO), KD_O(IO, 4)
#define KD_O6(IO) KD_O5(IO), KD_O(IO, 5)
#define KD_O7(IO) KD_O6(IO), KD_O(IO, 6)
#define KD_O8(IO) KD_O7(IO), KD_O(IO, 7)
#define KD_SET "=f"
#define KD_ADD "+f"

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

// Where a block of 16 rows of k or more of 128 values lies that tensor maps leave in two boxes of 64 values a row, 128 bytes: `box`
// bytes from one to the other. Rows come as they are in memory, k by k, so this is for products that transpose `b`.
__device__ __forceinline__ uint64_t wgmma_columns(uint32_t address, uint32_t box) {
  return uint64_t(address >> 4 & 0x3fff) | uint64_t(box >> 4) << 16 | uint64_t(1024 >> 4) << 32 | uint64_t(1) << 62;
}

// d[64][128] += a[64][16] * b[16][128], as wgmma_add; `b` is what wgmma_columns says, and 16 rows of k further is 128 more.
__device__ __forceinline__ void wgmma_add_columns(float (&d)[16][4], const uint32_t (&a)[4], uint64_t b) {
#define KD_FOUR(j) "+f"(d[j][0]), "+f"(d[j][1]), "+f"(d[j][2]), "+f"(d[j][3])
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" KD_D8
      ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, "
      "%56, %57, %58, %59, %60, %61, %62, %63}, {%64, %65, %66, %67}, %68, 1, 1, 1, 1;"
      : KD_FOUR(0), KD_FOUR(1), KD_FOUR(2), KD_FOUR(3), KD_FOUR(4), KD_FOUR(5), KD_FOUR(6), KD_FOUR(7), KD_FOUR(8), KD_FOUR(9),
        KD_FOUR(10), KD_FOUR(11), KD_FOUR(12), KD_FOUR(13), KD_FOUR(14), KD_FOUR(15)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
#undef KD_FOUR
}

}  // namespace kd::ptx
