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

// One expert that has rows: its id, its first place in the list of rows, its rows, and the cost of the experts before it.
struct Entry {
  int expert, first, rows, cost_before;
};

// What a slab of some tiles of 8 rows costs a unit: reading and unpacking count as three tiles.
constexpr int SLAB_COST = 3;

__device__ __forceinline__ int entry_cost(int rows, int slab) {
  return SLAB_COST * ((rows + slab - 1) / slab) + (rows + 7) / 8;
}

__device__ __forceinline__ Entry load_entry(const int32_t* entries, int index) {
  const uint4 v = ptx::load16(entries + 4 * index);
  return {int(v.x), int(v.y), int(v.z), int(v.w)};
}

// A walk over a team's share of the items, STEPS for each slab of an expert: those that begin in its part of the total cost.
// It lies in shared memory, since it moves once in many blocks.
template <class U, int STEPS>
struct Walk {
  int cost, end, index, step, slab, slabs;
  Entry entry;

  __device__ __forceinline__ bool done() const { return cost >= end; }
  __device__ __forceinline__ int first() const { return entry.first + slab * U::SLAB; }
  __device__ __forceinline__ int rows() const { return ::min(U::SLAB, entry.rows - slab * U::SLAB); }

  __device__ __forceinline__ void enter(const int32_t* entries, int to) {
    index = to;
    entry = load_entry(entries, to);
    slabs = (entry.rows + U::SLAB - 1) / U::SLAB;
    step = slab = 0;
  }

  // The share of `team` of `teams`. `plan` holds the number of entries, then the cost of all.
  __device__ __forceinline__ void begin(const int32_t* plan, const int32_t* entries, int team, int teams) {
    const int count = ptx::load4(plan), total = ptx::load4(plan + 1) * STEPS;
    const int from = int(int64_t(total) * team / teams);
    end = int(int64_t(total) * (team + 1) / teams);
    cost = from;
    if (done()) return;
    int low = 0, high = count;  // the last entry that starts at or before `from`
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      if (ptx::load4(entries + 4 * middle + 3) * STEPS <= from)
        low = middle;
      else
        high = middle;
    }
    enter(entries, low);
    const int each = entry_cost(entry.rows, U::SLAB);
    step = (from - entry.cost_before * STEPS) / each;
    cost = entry.cost_before * STEPS + step * each;
    while (cost < from) next(entries);
  }

  __device__ __forceinline__ void next(const int32_t* entries) {
    cost += SLAB_COST + (rows() + 7) / 8;
    if (++slab < slabs) return;
    slab = 0;
    if (++step == STEPS && !done()) enter(entries, index + 1);
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
  int offset;
  const int32_t* entries;
  Walk<U, STEPS>* ahead;
  const unsigned char* from;
  int left, slot;
  uint32_t parity;

  __device__ __forceinline__ void point() {
    const int64_t unit = int64_t(ahead->entry.expert) * U::UNITS + ahead->step * UNITS_A_STEP;
    from = weights + (unit * (U::K / BLOCK_K * BLOCK_BYTES) + offset);
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
    ptx::bulk_load(slots + to * STAGE_BYTES, from, STAGE_BYTES, full + to, ptx::evict_first());
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
