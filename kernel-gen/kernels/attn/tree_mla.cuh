// Absorbed MLA of tree nodes over pages and scratch: partial results of one leaf of keys for each tile of rows.
//
// A tile is ROWS rows (node, head) of one stream. Keys come in steps of 16 neighbouring positions, each multiplied, and its
// softmax rescaled, on its own; scores are the sum of four quarters of the latent in order. So a row's bits depend on its own
// query and keys, in order of position. While all 16 positions are committed, a step serves every row of the tile. From there
// on each node has steps of its own, gathered along its path from page and scratch: the row cannot tell where a key came from.
//
// Neither can it tell how many steps are worked on together, nor which side of the products its tile is: wide tiles keep the
// tensor cores busy, narrow ones the memory.
#pragma once

#include "attn/mla_narrow.cuh"
#include "attn/mla_wide.cuh"
#include "ptx/pdl.cuh"

namespace kd {

namespace mla {

// The step of `work` whose ring entry has number `entry`.
template <class U, class S>
__device__ __forceinline__ Step step_of(const Work& work, int number, int entry) {
  return number < work.trunk ? Step{0, U::ROWS, KEYS} : gathered_step<S>(entry);
}

// The keys of one item for a narrow tile, from ring entry `first` on. Two steps are scored, then mixed, while the next ones
// arrive.
template <class U, class S>
__device__ __forceinline__ void attend(Feed<U, S>& feed, Narrow<U, S>& rows, const Work& work, int turn, int first) {
  const int steps = work.steps;
  for (int now = 0, slot = first % U::ST; now < steps; now += 2) {
    const int second = slot + 1 == U::ST ? 0 : slot + 1;
    const bool both = now + 1 < steps;
    feed.wait(first + now);
    if (both) feed.wait(first + now + 1);
    __syncthreads();
    if (rows.own == 0 || both) rows.score(rows.own == 0 ? slot : second);
    // Two more steps of the trunk take the places of the two before.
    const int asked = feed.entry - feed.TILES;
    if (feed.turn == turn && now > 0 && feed.count + 2 == first + now + U::ST && asked + 1 < work.trunk) {
      const __nv_bfloat16 *one = feed.trunk_rows(turn, asked), *two = feed.trunk_rows(turn, asked + 1);
      feed.copy(one, one + U::W, uint32_t(feed.count) % U::ST);
      feed.copy(two, two + U::W, uint32_t(feed.count + 1) % U::ST);
      feed.passed(2);
    } else {
      feed.fill(first + now, turn + 1);
    }
    __syncthreads();
    if (now + 1 < work.trunk) {
      rows.mix_both(slot, second);
    } else {
      rows.mix(step_of<U, S>(work, now, first + now), 0, slot);
      if (both) rows.mix(step_of<U, S>(work, now + 1, first + now + 1), 1, second);
    }
    slot = second + 1 == U::ST ? 0 : second + 1;
  }
}

// The turns of a wide tile, from step 1 on, whose steps, and the one that is requested, serve all rows. Returns the step to be
// weighed next.
template <class U, class S>
__device__ __forceinline__ int trunk_turns(Feed<U, S>& feed, Wide<U, S>& rows, const Work& work, int turn, int first) {
  constexpr int AHEAD = U::ST - 1;  // of what is weighed is what is requested
  rows.renew();
  const int trunk = work.trunk;
  int now = 1;
  if (feed.turn != turn || feed.count != first + now + AHEAD || now + AHEAD >= trunk) return now;
  const __nv_bfloat16* from = feed.trunk_rows(turn, now + AHEAD);
#pragma unroll 1
  for (; now + AHEAD < trunk; ++now) {
    const int slot = (first + now) % U::ST, before = (slot + U::ST - 1) % U::ST;
    if (rows.half == 1) rows.template mix<true>(Step{}, before, (now - 1) & 1);
    rows.template weigh<true>(Step{}, now & 1);
    if (rows.half == 0) rows.template mix<true>(Step{}, before, (now - 1) & 1);
    feed.wait(first + now + 1);
    __syncthreads();
    if ((now + AHEAD) % (PAGE / KEYS) == 0) from = feed.trunk_rows(turn, now + AHEAD);
    feed.copy(from, from + U::W, before);
    from += KEYS * U::W;
    rows.score((slot + 1) % U::ST);
    __syncthreads();
  }
  feed.passed(now - 1);
  return now;
}

// The same for a wide tile. A step is weighed while the one before it is mixed, half of the warps in either order so that both
// kinds of unit are busy, and then the next one is scored.
template <class U, class S>
__device__ __forceinline__ void attend(Feed<U, S>& feed, Wide<U, S>& rows, const Work& work, int turn, int first) {
  static_assert((U::ST & (U::ST - 1)) == 0, "slots by number");
  const auto step = [&](int number) { return step_of<U, S>(work, number, first + number); };
  feed.wait(first);
  __syncthreads();
  if (rows.scores(step(0))) rows.score(first % U::ST);
  __syncthreads();
#pragma unroll 1
  for (int now = 0;; ++now) {
    if (now == 1) now = trunk_turns(feed, rows, work, turn, first);
    rows.renew();
    if (now < work.steps) rows.template weigh<false>(step(now), now & 1);
    if (now > 0) rows.template mix<false>(step(now - 1), (first + now - 1) % U::ST, (now - 1) & 1);
    if (now == work.steps) break;
    const bool more = now + 1 < work.steps;
    if (more) feed.wait(first + now + 1);
    __syncthreads();
    feed.fill(first + now, turn + 1);
    if (more && rows.scores(step(now + 1))) rows.score((first + now + 1) % U::ST);
    __syncthreads();
  }
}

template <class U, class S, bool = (U::NT > 0)>
struct Tile {
  using Rows = Wide<U, S>;
};
template <class U, class S>
struct Tile<U, S, true> {
  using Rows = Narrow<U, S>;
};

}  // namespace mla

template <class U, class S>
__device__ __forceinline__ void tree_mla(const __nv_bfloat16* q, const __nv_bfloat16* pages, const int32_t* table,
                                         const int32_t* starts, const int32_t* committed, const uint64_t* ancestors,
                                         const __nv_bfloat16* scratch, float scale, int32_t* queue, float* part_o,
                                         float* part_ml, int T, int X, int B, int P, int Z) {
  using namespace mla;
  const int warp = threadIdx.x / 32;
  ptx::grid_dependency_wait();
  ptx::grid_dependency_launch();
  if (threadIdx.x == 0) Feed<U, S>::prepare();
  if (warp == 7) set_up<U, S>(0, table, starts, committed, ancestors, scale, queue, X, B, P);
  Feed<U, S> feed{pages, scratch, q};
#pragma unroll 1
  for (int turn = 0, used = 0;; ++turn) {
    __syncthreads();
    const Work& work = work_of<S>(turn);
    if (work.steps < 0) break;
    typename Tile<U, S>::Rows rows;
    rows.factor = &work.factor;
    feed.fill(used, turn);
    for (int i = 0; i < feed.TILES; ++i) feed.wait(used + i);
    __syncthreads();
    rows.take_queries(used % U::ST);
    used += feed.TILES;
    __syncthreads();
    feed.fill(used, turn);
    // The next item is looked up while the first keys arrive.
    if (warp == 7) set_up<U, S>(turn + 1, table, starts, committed, ancestors, scale, queue, X, B, P);
    attend(feed, rows, work, turn, used);
    used += work.steps;
    rows.store(work, part_o, part_ml, Z);
  }
}

}  // namespace kd
