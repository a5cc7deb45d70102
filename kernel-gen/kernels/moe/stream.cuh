// Expert weights as a stream: what a team of warps has to do, and one warp's ring of blocks.
//
// Weights lie in blocks of 32 rows and 64 values of k, words before scales (docs/formats.md); a unit is 32 rows and all of
// K, an item one unit for one slab of at most SLAB rows of one expert. The items of a launch are numbered expert by expert,
// unit by unit, slab by slab, and a team takes an equal, contiguous share, so only neighbours read the same weights.
//
// A warp has a ring of its own and fills it itself, one block ahead for each that it has taken out: no other warp is waited
// for, and the ring runs ahead over the ends of items, whose addresses depend on the routing alone.
#pragma once

#include "kd/base.cuh"
#include "ptx/bulk.cuh"
#include "ptx/memory.cuh"

namespace kd {
namespace moe {

constexpr int UNIT_ROWS = 32, BLOCK_K = 64, WORD_BYTES = UNIT_ROWS * BLOCK_K / 2;
constexpr int BLOCK_BYTES = WORD_BYTES + UNIT_ROWS * BLOCK_K / 32 * 2;

// One expert that has rows: its id, its first place in the list of rows, its rows, and the slabs of the experts before it.
struct Entry {
  int expert, first, rows, slabs_before;
};

__device__ __forceinline__ Entry load_entry(const int32_t* entries, int index) {
  const uint4 v = ptx::load16(entries + 4 * index);
  return {int(v.x), int(v.y), int(v.z), int(v.w)};
}

// A walk over the items [item, end) of a team, STEPS for each slab of an expert. It lies in shared memory, since it moves
// once in many blocks.
template <class U, int STEPS>
struct Walk {
  int item, end, index, step, slab, slabs;
  Entry entry;

  __device__ __forceinline__ bool done() const { return item >= end; }

  __device__ __forceinline__ void enter(const int32_t* entries, int to, int local) {
    index = to;
    entry = load_entry(entries, to);
    slabs = (entry.rows + U::SLAB - 1) / U::SLAB;
    step = slabs == 1 ? local : local / slabs;
    slab = local - step * slabs;
  }

  // The share of `team` of `teams`. `plan` holds the number of entries, then that of slabs.
  __device__ __forceinline__ void begin(const int32_t* plan, const int32_t* entries, int team, int teams) {
    const int count = ptx::load4(plan), total = ptx::load4(plan + 1) * STEPS;
    item = int(int64_t(total) * team / teams), end = int(int64_t(total) * (team + 1) / teams);
    if (done()) return;
    int low = 0, high = count;  // the last entry that starts at or before `item`
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      if (ptx::load4(entries + 4 * middle + 3) * STEPS <= item)
        low = middle;
      else
        high = middle;
    }
    enter(entries, low, item - ptx::load4(entries + 4 * low + 3) * STEPS);
  }

  __device__ __forceinline__ void next(const int32_t* entries) {
    if (++item >= end) return;
    if (++slab < slabs) return;
    slab = 0;
    if (++step == STEPS) enter(entries, index + 1, 0);
  }
};

// One warp's stages of PER_STAGE blocks, item by item: LENGTH blocks, in each item, of the unit that is UNITS_A_STEP times
// its step and an offset in `weights`. `from` and `left` belong to the elected lane, which alone requests stages.
template <class U, int STEPS, int LENGTH>
struct Ring {
  static constexpr int STAGE_BYTES = U::PER_STAGE * BLOCK_BYTES, UNITS_A_STEP = U::UNITS / STEPS;
  unsigned char* slots;
  uint64_t* full;
  const unsigned char* weights;
  const int32_t* entries;
  Walk<U, STEPS>* ahead;
  uint64_t policy;
  const unsigned char* from;
  int left, slot;
  uint32_t parity;

  __device__ __forceinline__ void point() {
    const int64_t unit = int64_t(ahead->entry.expert) * U::UNITS + ahead->step * UNITS_A_STEP;
    from = weights + unit * (U::K / BLOCK_K * BLOCK_BYTES);
    left = ahead->done() ? 0 : LENGTH / U::PER_STAGE;
  }

  // The elected lane, once its walk is at its first item.
  __device__ __forceinline__ void start() {
    point();
#pragma unroll 1
    for (int i = 0; i < U::STAGES; ++i) request(i);
  }

  // Fills slot `to` with the next stage, if there is one. The elected lane.
  __device__ __forceinline__ void request(int to) {
    if (left == 0) return;
    ptx::barrier_arrive_expect(full + to, STAGE_BYTES);
    ptx::bulk_load(slots + to * STAGE_BYTES, from, STAGE_BYTES, full + to, policy);
    from += STAGE_BYTES;
    if (--left > 0) return;
    ahead->next(entries);
    point();
  }

  // The next stage, once it is there.
  __device__ __forceinline__ const unsigned char* front() {
    ptx::barrier_wait(full + slot, parity);
    return slots + slot * STAGE_BYTES;
  }

  // Gives the stage back: all lanes have read what they need of it.
  __device__ __forceinline__ void pop() {
    __syncwarp();
    if (ptx::elect_one()) request(slot);
    if (++slot == U::STAGES) slot = 0, parity ^= 1;
  }
};

}  // namespace moe
}  // namespace kd
