// A team's items: an equal share of most of the cost, then what it draws from a pool of the rest, a few items at a time.
//
// SMs do not run equally fast beside each other, so with shares alone the last team ends a tenth to a quarter after the mean.
// Nobody waits for another CTA: a number that is drawn belongs to a team that runs. Sums do not depend on who makes them.
#pragma once

#include "moe/stream.cuh"

namespace kd {
namespace moe {

// Most experts that a launch goes through, and numbers that a team has drawn and not every warp has taken.
constexpr int MOST_ENTRIES = 1024, DRAWS = 8;

// What the warps of a team do next; no rows, no more.
struct alignas(16) Item {
  int first, rows, unit;
};

// A warp's walk, and the items that it has passed and the warp has not begun.
template <class U>
struct Feed {
  using W = Walk<U, U::UNITS, Lists>;
  static constexpr int DEPTH = 4;
  static_assert(U::STAGES < DEPTH, "a ring runs ahead by fewer items than are kept");
  Item items[DEPTH];
  W walk;
};

// What all teams draw from: shares of `QUANTUM` items of one tile, from cost `from` on.
struct Pool {
  int32_t* drawn;
  // cost_before of each entry.
  const int32_t* costs;
  int entries, from, end;
};

// As Ring, for the items of a Feed. The first warp of a team draws for all: a stage ahead of need it asks, the stage after it
// tells the others through `told` and `numbers`.
template <class U>
struct DrawnRing {
  using W = typename Feed<U>::W;
  static constexpr int STAGE_BYTES = U::PER_STAGE * BLOCK_BYTES, ITEM_STAGES = U::BLOCKS / U::PER_STAGE;
  static constexpr int QUANTUM = U::QUANTUM * (SLAB_COST + 1);
  unsigned char* slots;
  uint64_t* full;
  const unsigned char* weights;
  int segment;
  Lists lists;
  Feed<U>* feed;
  Pool pool;
  uint64_t* told;
  int* numbers;
  // Of the elected lane: the next block, the stages to come of the item, items so far, numbers taken so far, and the next
  // number: whether it was asked for, and told to the team.
  int from = 0, left = 0, passed = 0, taken = 0, number = 0;
  bool asked = false, known = false;
  // Whether the item's weights are read for another slab.
  bool again = false;
  int slot = 0;
  uint32_t parity = 0;

  // The elected lane, once its walk is at its share.
  __device__ __forceinline__ void start() {
    enter();
#pragma unroll 1
    for (int i = 0; i + 1 < U::STAGES; ++i) request(i);
  }

  __device__ __forceinline__ void ask() { number = atomicAdd(pool.drawn, 1), asked = true; }

  __device__ __forceinline__ void tell() {
    known = true;
    if constexpr (U::SEGS > 1) {
      numbers[taken % DRAWS] = number;
      ptx::barrier_arrive(told + taken % DRAWS);
    }
  }

  // The team's next share of the pool, if there is one.
  __device__ __forceinline__ bool draw() {
    if (segment == 0) {
      if (!asked) ask();
      if (!known) tell();
      asked = known = false;
    } else {
      ptx::barrier_wait(told + taken % DRAWS, taken / DRAWS % 2);
      number = numbers[taken % DRAWS];
    }
    ++taken;
    const int begin = pool.from + number * QUANTUM;
    if (begin >= pool.end) return false;
    int at = 0;
#pragma unroll 1
    for (int step = MOST_ENTRIES / 2; step > 0; step /= 2)
      if (at + step < pool.entries && pool.costs[at + step] * U::UNITS <= begin) at += step;
    feed->walk.begin_at(lists, at, begin, ::min(begin + QUANTUM, pool.end));
    return true;
  }

  // Goes to the next item.
  __device__ __forceinline__ void enter() {
    W& walk = feed->walk;
    while (walk.done() && draw()) {
    }
    const bool more = !walk.done();
    feed->items[passed++ % Feed<U>::DEPTH] = {walk.first(), more ? walk.rows() : 0, walk.step};
    left = more ? ITEM_STAGES : 0, again = walk.again();
    from = (walk.entry.expert * U::UNITS + walk.step) * (U::K / BLOCK_K) + segment * U::BLOCKS;
    if (segment == 0 && more && walk.cost + SLAB_COST + 1 >= walk.end) ask();
  }

  // Fills slot `to` with the next stage, if there is one. The elected lane.
  __device__ __forceinline__ void request(int to) {
    if (left == 0) return;
    if (asked && !known) tell();
    ptx::barrier_arrive_expect(full + to, STAGE_BYTES);
    const unsigned char* stage = weights + int64_t(from) * BLOCK_BYTES;
    // What another slab reads soon keeps its place in the L2; marked as read once it would be gone by then.
    if (again)
      ptx::bulk_load(slots + to * STAGE_BYTES, stage, STAGE_BYTES, full + to);
    else
      ptx::bulk_load(slots + to * STAGE_BYTES, stage, STAGE_BYTES, full + to, ptx::evict_first());
    from += U::PER_STAGE;
    if (--left > 0) return;
    feed->walk.next(lists);
    enter();
  }

  // As Ring.
  __device__ __forceinline__ void renew() {
    __syncwarp();
    if (ptx::elect_one()) {
      ptx::copies_after_accesses();
      request((slot == 0 ? U::STAGES : slot) - 1);
    }
  }

  __device__ __forceinline__ const unsigned char* front() {
    ptx::barrier_wait(full + slot, parity);
    return slots + slot * STAGE_BYTES;
  }

  __device__ __forceinline__ void pop() {
    if (++slot == U::STAGES) slot = 0, parity ^= 1;
  }
};

}  // namespace moe
}  // namespace kd
