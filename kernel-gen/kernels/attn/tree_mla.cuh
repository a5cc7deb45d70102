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

#include "attn/mla_cluster.cuh"
#include "attn/mla_groups.cuh"
#include "attn/mla_narrow.cuh"
#include "attn/mla_wide_items.cuh"
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
    if constexpr (U::FP8) {
      feed.expand(slot);
      if (both) feed.expand(second);
    }
    __syncthreads();
    if (rows.own == 0 || both) rows.score(rows.own == 0 ? slot : second);
    // Two more steps of the trunk take the places of the two before.
    const int asked = feed.entry - feed.TILES;
    if (feed.turn == turn && now > 0 && feed.count + 2 == first + now + U::ST && asked + 1 < work.trunk) {
      if constexpr (U::FP8) {
        feed.ask_trunk(turn, asked, uint32_t(feed.count) % U::ST);
        feed.ask_trunk(turn, asked + 1, uint32_t(feed.count + 1) % U::ST);
      } else {
        const __nv_bfloat16 *one = feed.trunk_rows(turn, asked), *two = feed.trunk_rows(turn, asked + 1);
        feed.copy(one, one + U::W, uint32_t(feed.count) % U::ST);
        feed.copy(two, two + U::W, uint32_t(feed.count + 1) % U::ST);
      }
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

// The items of a CTA of narrow tiles.
template <class U, class S, class Next>
__device__ __forceinline__ void narrow_items(Feed<U, S> feed, Next set_up, float* part_o, float* part_ml, int Z) {
  const int warp = threadIdx.x / 32;
  if (threadIdx.x == 0) Feed<U, S>::prepare();
  if (warp == 7) set_up(0);
#pragma unroll 1
  for (int turn = 0, used = 0;; ++turn) {
    __syncthreads();
    const Work& work = work_of<S>(turn);
    if (work.steps < 0) break;
    Narrow<U, S> rows;
    rows.factor = &work.factor;
    feed.fill(used, turn);
    for (int i = 0; i < feed.TILES; ++i) feed.wait(used + i);
    __syncthreads();
    rows.take_queries(uint32_t(used) % U::ST);
    used += feed.TILES;
    __syncthreads();
    feed.fill(used, turn);
    // The next item is looked up while the first keys arrive.
    if (warp == 7) set_up(turn + 1);
    attend(feed, rows, work, turn, used);
    used += work.steps;
    rows.store(work, part_o, part_ml, Z);
  }
}

// The items of a cluster.
template <class U, class S, class Next>
__device__ __forceinline__ void shared_items(Blocks<U, S> keys, Next set_up, float* part_o, float* part_ml, int Z) {
  using D = Division<U>;
  const int warp = threadIdx.x / 32;
  if (threadIdx.x == 0) Shared<U, S>::prepare(keys.entries);
  ptx::cluster_arrive();  // others may send to this CTA
  // Nothing that an item is looked up by comes from the kernel in front.
  if (warp == 7) set_up(0);
  Shared<U, S> rows(keys.rank);
  __syncthreads();
  ptx::cluster_wait();
  ptx::grid_dependency_wait();
  ptx::grid_dependency_launch();
#pragma unroll 1
  for (int turn = 0, used = 0;; ++turn) {
    const Work& work = work_of<S>(turn);
    const int steps = work.steps;
    if (steps < 0) break;
    keys.fill(used, turn);
    keys.wait(used);
    __syncthreads();
    rows.take_queries(used++);
    if (warp == 7) set_up(turn + 1);
    int sent = used - turn - 1;  // blocks of scores
#pragma unroll 1
    for (int first = 0; first < steps; first += D::STEPS, ++used, ++sent) {
      keys.wait(used);
      // The block is there, and the one before it no longer needed.
      __syncthreads();
      keys.fill(used, turn + 1);
      const int number = first + rows.own;
      const bool live = number < steps;
      typename Shared<U, S>::Scores s = {};
      if (live) rows.score(used, s);
      rows.exchange(sent, s);
      const Step step = number < work.trunk || !live ? Step{0, U::ROWS, KEYS} : Blocks<U, S>::step_of(used, rows.own);
      if (rows.weigh(sent, s, work.factor, step, live, first == 0))
        rows.template mix<true>(used, sent, work.trunk - first, steps - first);
      else
        rows.template mix<false>(used, sent, work.trunk - first, steps - first);
    }
    __syncthreads();
    rows.store(work, used - 1, part_o, part_ml, Z);
    // The next item is known, and the last block's place is free.
    __syncthreads();
  }
}

}  // namespace mla

template <class U, class S>
__device__ __forceinline__ void tree_mla_fp8(const __nv_bfloat16* q, const uint8_t* pages, const int32_t* table,
                                             const int32_t* starts, const int32_t* committed, const uint64_t* ancestors,
                                             const __nv_bfloat16* scratch, float scale, int32_t* queue, float* part_o,
                                             float* part_ml, int T, int X, int B, int P, int Z) {
  using namespace mla;
  ptx::grid_dependency_wait();
  ptx::grid_dependency_launch();
  const SetUp<U, S, Taken> next = {pages, table, starts, committed, ancestors, scale, X, B, P, {queue}};
  if constexpr (U::MT > 0)
    wide_items<U, S>({pages, scratch, q}, next, part_o, part_ml, Z);
  else
    narrow_items<U, S>({pages, scratch, q}, next, part_o, part_ml, Z);
}

template <class U, class S>
__device__ __forceinline__ void tree_mla(const __nv_bfloat16* q, const __nv_bfloat16* pages,
                                         const ptx::TensorMap& entries, const int32_t* table,
                                         const int32_t* starts, const int32_t* committed, const uint64_t* ancestors,
                                         const __nv_bfloat16* scratch, float scale, int32_t* queue, float* part_o,
                                         float* part_ml, int T, int X, int B, int P, int Z) {
  using namespace mla;
  if constexpr (U::CLUSTER > 1) {
    const SetUp<U, S, Dealt<U::CLUSTER>> next = {pages, table, starts, committed, ancestors, scale, X, B, P, {}};
    shared_items<U, S>({entries, pages, scratch, q, int(blockIdx.x) % U::CLUSTER}, next, part_o, part_ml, Z);
  } else {
    ptx::grid_dependency_wait();
    ptx::grid_dependency_launch();
    const SetUp<U, S, Taken> next = {pages, table, starts, committed, ancestors, scale, X, B, P, {queue}};
    if constexpr (U::GROUPS > 0)
      group_items<U, S>({entries, pages, scratch, q}, next, part_o, part_ml, Z);
    else if constexpr (U::MT > 0)
      wide_items<U, S>({pages, scratch, q}, next, part_o, part_ml, Z);
    else
      narrow_items<U, S>({pages, scratch, q}, next, part_o, part_ml, Z);
  }
}

}  // namespace kd
