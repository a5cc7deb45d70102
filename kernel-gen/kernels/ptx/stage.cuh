// Tiles through shared memory: copies that run beside the arithmetic, and fragments for mma (PTX ISA: cp.async, ldmatrix).
#pragma once

#include <stdint.h>

namespace kd::ptx {

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return uint32_t(__cvta_generic_to_shared(pointer));
}

// 16 bytes from global to shared memory; zeros if not `live`, and then `from` is not read.
__device__ __forceinline__ void copy16(uint32_t to, const void* from, bool live) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(live ? 16 : 0) : "memory");
}

// Ends a group of this thread's copies; an empty group counts.
__device__ __forceinline__ void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most PENDING of this thread's newest groups are unfinished.
template <int PENDING>
__device__ __forceinline__ void copy_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

// Four 8 x 8 tiles of 16-bit values; lane l gives the address of row l % 8 of tile l / 8 and gets of each tile the values
// 2 (l % 4) and 2 (l % 4) + 1 of row l / 4.
__device__ __forceinline__ void load_tiles(uint32_t (&tile)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(tile[0]), "=r"(tile[1]), "=r"(tile[2]), "=r"(tile[3])
               : "r"(address)
               : "memory");
}

}  // namespace kd::ptx
