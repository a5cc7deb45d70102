// What products of a warpgroup, 128 threads, need whatever their operands: order, waits and registers (PTX
// ISA: wgmma, setmaxnreg). sm_90a alone has them.
#pragma once

#include <stdint.h>

namespace kd::ptx {

// In front of products whose registers something else has written.
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

// The products since the last call become one group.
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Waits until at most PENDING of the newest groups are unfinished.
template <int PENDING>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

// Keeps what touches these registers on its side of a fence or wait.
template <int NT>
__device__ __forceinline__ void pin(float (&d)[NT][4]) {
#pragma unroll
  for (int j = 0; j < NT; ++j) asm volatile("" : "+f"(d[j][0]), "+f"(d[j][1]), "+f"(d[j][2]), "+f"(d[j][3])::"memory");
}

// What an operand in shared memory is (PTX ISA: matrix descriptor): rows of 64 bf16 or f16 as tensor maps leave them, 128 bytes each,
// eight of them 1024 apart, the 16-byte chunks of row r exchanged by `chunk ^ r % 8`. `address` is a multiple of 1024.
//
// Bits 0 to 13: address / 16; 16 to 29: bytes / 16 to the next 64 columns. The high half is the same for all: bits 32 to 45, bytes / 16 from
// 8 rows to the next 8; 62 and 63, the exchange of chunks.
constexpr uint32_t WGMMA_HIGH = 1 << 30 | 1024 >> 4;

// Rows of k, one after the other as they are in memory, for products that transpose the operand: 16 of them further is 128 more. 64 columns
// are a block, `next` bytes before the next. The low half alone is for products that know the other (wgmma_low.cuh).
__device__ __forceinline__ uint32_t low_of_columns(uint32_t address, uint32_t next) { return next >> 4 << 16 | (address & 0x3ffff) >> 4; }
__device__ __forceinline__ uint64_t wgmma_columns(uint32_t address, uint32_t next) {
  return uint64_t(WGMMA_HIGH) << 32 | low_of_columns(address, next);
}

// Rows along k: 16 values of k further is 2 more. There is one block.
__device__ __forceinline__ uint32_t low_of_rows(uint32_t address) { return low_of_columns(address, 16); }
__device__ __forceinline__ uint64_t wgmma_rows(uint32_t address) { return wgmma_columns(address, 16); }

// Registers of each thread of the calling warpgroup from here on, a multiple of 8: fewer, for others to have more.
template <int COUNT>
__device__ __forceinline__ void give_registers() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT)); }
template <int COUNT>
__device__ __forceinline__ void take_registers() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT)); }

}  // namespace kd::ptx
