// Expert weights as a stream: what a team of warps has to do, and one warp's ring of blocks.
//
// Weights lie in blocks of 32 rows and 64 values of k, words before scales (docs/formats.md); a unit is 32 rows and all of
// K, an item one unit for one slab of at most SLAB rows of one expert. The items of a launch are numbered expert by expert,
// unit by unit, slab by slab, and a team takes an equal, contiguous share, so only neighbours read the same weights.
//
// A warp has a ring of its own and fills it itself, a stage for each that it has read: no other warp is waited
// for, and the ring runs ahead over the ends of items, whose addresses depend on the routing alone.
#pragma once

#include "kd/base.cuh"
#include "ptx/bulk.cuh"
#include "ptx/memory.cuh"

namespace kd {
namespace moe {

constexpr int UNIT_ROWS = 32, BLOCK_K = 64, WORD_BYTES = UNIT_ROWS * BLOCK_K / 2;
constexpr int BLOCK_BYTES = WORD_BYTES + UNIT_ROWS * BLOCK_K / 32 * 2;

// Segments of a sum over `k` values: a constant of k alone, since a row's bits depend on it.
constexpr int segments(int k) { return k >= 4096 ? 8 : k >= 2048 ? 4 : k >= 1024 ? 2 : 1; }

// One expert that has rows: its id, its first place in the list of rows, its rows, and the cost of the experts before it.
struct Entry {
  int expert, first, rows, cost_before;
};

// What a slab of some tiles of 8 rows costs a unit: reading and unpacking count as three tiles.
constexpr int SLAB_COST = 3;

__device__ __forceinline__ int entry_cost(int rows, int slab) {
  return SLAB_COST * ((rows + slab - 1) / slab) + (rows + 7) / 8;
}

// Where `moe_group` has left the entries: their number, at most 1024, and the cost of all in `plan`.
struct Lists {
  using Product = int64_t;
  const int32_t *plan, *entries;

  __device__ __forceinline__ int count() const { return ptx::load4(plan); }
  __device__ __forceinline__ int cost() const { return ptx::load4(plan + 1); }
  __device__ __forceinline__ int cost_before(int index) const { return ptx::load4(entries + 4 * index + 3); }
  __device__ __forceinline__ Entry entry(int index) const {
    const uint4 v = ptx::load16(entries + 4 * index);
    return {int(v.x), int(v.y), int(v.z), int(v.w)};
  }
};

// The last entry that starts at or before `cost`, each cost counted `times` times, found by a whole warp: of 32 entries, then
// of those up to the next of the 32.
template <class L>
__device__ __forceinline__ int entry_at(const L& lists, int count, int cost, int times) {
  const int lane = threadIdx.x % 32, stride = (count + 31) / 32;
  const auto starts_before = [&](int index) { return index < count && lists.cost_before(index) * times <= cost; };
  const int at = (__popc(__ballot_sync(0xffffffffu, starts_before(lane * stride))) - 1) * stride;
  return at + __popc(__ballot_sync(0xffffffffu, lane < stride && starts_before(at + lane))) - 1;
}

// A walk over a team's share of the items, STEPS for each slab of an expert: those that begin in its part of the total cost.
// It lies in shared memory, since it moves once in many blocks.
template <class U, int STEPS_, class L>
struct Walk {
  using Lists = L;
  static constexpr int STEPS = STEPS_;
  int cost, end, index, step, slab, slabs;
  Entry entry;

  __device__ __forceinline__ bool done() const { return cost >= end; }
  __device__ __forceinline__ int first() const { return entry.first + slab * U::SLAB; }
  __device__ __forceinline__ int rows() const { return ::min(U::SLAB, entry.rows - slab * U::SLAB); }
  // Whether the next item reads the same weights.
  __device__ __forceinline__ bool again() const { return slab + 1 < slabs; }

  __device__ __forceinline__ void enter(const L& entries, int to) {
    index = to;
    entry = entries.entry(to);
    slabs = (entry.rows + U::SLAB - 1) / U::SLAB;
    step = slab = 0;
  }

  // The share of `team` of `teams` of the first `total`, found by a whole warp.
  __device__ __forceinline__ void begin(const L& entries, typename L::Product total, int team, int teams) {
    const int from = int(total * team / teams), to = int(total * (team + 1) / teams);
    const int at = entry_at(entries, entries.count(), from, STEPS);
    if (ptx::elect_one()) begin_at(entries, at, from, to);
    __syncwarp();
  }

  // The share of `team` of `teams` of all.
  __device__ __forceinline__ void begin(const L& entries, int team, int teams) {
    begin(entries, typename L::Product(entries.cost() * STEPS), team, teams);
  }

  // The items that begin from cost `from` to before `to`, the first of them in entry `at`.
  __device__ __forceinline__ void begin_at(const L& entries, int at, int from, int to) {
    cost = from, end = to;
    if (done()) return;
    enter(entries, at);
    const int each = entry_cost(entry.rows, U::SLAB);
    step = (from - entry.cost_before * STEPS) / each;
    cost = entry.cost_before * STEPS + step * each;
    while (cost < from) next(entries);
  }

  __device__ __forceinline__ void next(const L& entries) {
    cost += SLAB_COST + (rows() + 7) / 8;
    if (++slab < slabs) return;
    slab = 0;
    if (++step == STEPS && !done()) enter(entries, index + 1);
  }
};

// One warp's stages of PER_STAGE blocks, item by item: LENGTH blocks, in each item, of the unit that is UNITS_A_STEP times
// its step and `offset` blocks in `weights`. `from`, the next block, and `left`, the stages to come of the item, belong to the
// elected lane, which alone requests stages.
template <class U, class W, int LENGTH>
struct Ring {
  static constexpr int STAGE_BYTES = U::PER_STAGE * BLOCK_BYTES, UNITS_A_STEP = U::UNITS / W::STEPS;
  unsigned char* slots;
  uint64_t* full;
  const unsigned char* weights;
  int offset;
  typename W::Lists entries;
  W* ahead;
  int from, left, slot;
  uint32_t parity;

  __device__ __forceinline__ void point() {
    from = (ahead->entry.expert * U::UNITS + ahead->step * UNITS_A_STEP) * (U::K / BLOCK_K) + offset;
    left = ahead->done() ? 0 : LENGTH / U::PER_STAGE;
  }

  // The elected lane, once its walk is at its first item. The slot before the first is the one that `renew` fills.
  __device__ __forceinline__ void start() {
    point();
#pragma unroll 1
    for (int i = 0, to = slot; i + 1 < U::STAGES; ++i, to = to + 1 == U::STAGES ? 0 : to + 1) request(to);
  }

  // Fills slot `to` with the next stage, if there is one. The elected lane.
  __device__ __forceinline__ void request(int to) {
    if (left == 0) return;
    ptx::barrier_arrive_expect(full + to, STAGE_BYTES);
    ptx::bulk_load(slots + to * STAGE_BYTES, weights + int64_t(from) * BLOCK_BYTES, STAGE_BYTES, full + to,
                   ptx::evict_first());
    from += U::PER_STAGE;
    if (--left > 0) return;
    ahead->next(entries);
    point();
  }

  __device__ __forceinline__ int slot_before() const { return (slot == 0 ? U::STAGES : slot) - 1; }

  // Fills the slot of the stage before again, which no lane reads any more: lanes are ordered among each other by __syncwarp,
  // but their reads and the copy only by the fence.
  __device__ __forceinline__ void renew() {
    __syncwarp();
    if (ptx::elect_one()) {
      ptx::copies_after_accesses();
      request(slot_before());
    }
  }

  // The next stage, once it is there. What renews the ring only then has a stage less under way: more bytes in flight read slower.
  __device__ __forceinline__ const unsigned char* front() {
    ptx::barrier_wait(full + slot, parity);
    return slots + slot * STAGE_BYTES;
  }

  // Goes on to the stage after this one.
  __device__ __forceinline__ void pop() {
    if (++slot == U::STAGES) slot = 0, parity ^= 1;
  }
};

// A place in a ring, and how often the ring has gone round.
template <int COUNT>
struct Place {
  int slot = 0;
  uint32_t parity = 0;
  __device__ __forceinline__ void next() {
    if (++slot == COUNT) slot = 0, parity ^= 1;
  }
};

}  // namespace moe
}  // namespace kd
