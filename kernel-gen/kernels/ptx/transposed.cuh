// Tiles of sums on their way from the tensor core to memory: stores to shared memory with rows and columns exchanged (PTX ISA:
// stmatrix), and copies from there that run beside the threads (PTX ISA: cp.async.bulk).
#pragma once

#include <stdint.h>

#include "ptx/copy.cuh"

namespace kd::ptx {

// Two 8 x 8 tiles of 16-bit values as products leave them: word i of lane 4g + t has columns 2t and 2t + 1 of row g of tile i. Column
// c of tile i goes to the shared address of lane 8i + c, 16 bytes, row after row.
__device__ __forceinline__ void store_columns(uint32_t address, uint32_t first, uint32_t second) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(address), "r"(first), "r"(second)
               : "memory");
}

// Copies `bytes` (a multiple of 16, both addresses too) from shared to global memory.
__device__ __forceinline__ void bulk_store(void* to, uint32_t from, uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from), "r"(bytes) : "memory");
}

// What this thread has stored since the last call becomes one group; an empty group counts.
__device__ __forceinline__ void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// Waits until all of this thread's groups have been read from shared memory.
__device__ __forceinline__ void bulk_wait_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }

// Waits until all of this thread's groups are written.
__device__ __forceinline__ void bulk_wait() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

}  // namespace kd::ptx
