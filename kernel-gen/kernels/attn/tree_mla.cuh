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
#include "attn/mla_groups_narrow.cuh"
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

// The items of a cluster: one warp supplies keys and looks up items, for all of a CTA's own.
template <class U, class S, class Next>
__device__ __forceinline__ void shared_items(const Blocks<U, S>& keys, const __nv_bfloat16* q, Next set_up, float* part_o, float* part_ml, int Z) {
  using D = Division<U>;
  using Keys = Blocks<U, S>;
  constexpr int THREADS = 32 * Keys::WARPS;
  static_assert(U::BLOCK == THREADS + 32, "a warp that supplies");
  if (threadIdx.x == THREADS) Shared<U, S>::prepare(keys.entries);
  __syncthreads();
  ptx::cluster_arrive();  // others may send to this CTA
  if (threadIdx.x >= THREADS) {
    // Nothing that an item is looked up by, and no page, comes from the kernel in front.
    set_up(0);
    Keys::tell(0);
    keys.supply(set_up);
    ptx::cluster_wait();
    return;
  }
  Shared<U, S> rows(keys.rank);
  const int lane = threadIdx.x % 32;
  ptx::cluster_wait();
  ptx::grid_dependency_wait();
  ptx::grid_dependency_launch();
#pragma unroll 1
  for (int turn = 0, block = 0;; ++turn) {
    ptx::barrier_wait(Keys::known(turn), turn / 4 & 1);
    const Work& work = work_of<S>(turn);
    const int steps = work.steps, trunk = work.trunk;
    if (steps < 0) break;
    const float factor = work.factor;
    if (turn == 0) rows.take_queries(work, q);
    // What is no box: the blocks behind those of whole pages.
    const int whole = trunk / D::STEPS, blocks = (steps + D::STEPS - 1) / D::STEPS;
    int copied = whole;
    for (; copied < ::min(blocks, D::RING); ++copied) keys.copy_steps(work, turn, copied, block + copied);
    ptx::copy_commit();
    rows.clear();
    // The item before is mixed.
    if (turn > 0) ptx::named_barrier<THREADS>(1);
#pragma unroll 1
    for (int number = 0; number < blocks; number += U::GO) {
      const int live = ::min(U::GO, blocks - number), first = number * D::STEPS;
      if (number + live > whole) {
        ptx::copy_wait<0>();
        ptx::named_barrier<THREADS>(1);
      }
      typename Shared<U, S>::Scores s = {};
      Step own[U::GO];
      if (first + U::GO * D::STEPS <= steps) {
#pragma unroll
        for (int b = 0; b < U::GO; ++b) ptx::barrier_wait(Keys::full(block + number + b), Keys::parity(block + number + b));
        rows.template score<U::GO>(block + number, s);
#pragma unroll
        for (int b = 0; b < U::GO; ++b) rows.send(b, 0, s[b]);
      } else {
#pragma unroll
        for (int b = 0; b < U::GO; ++b) {
          if (b >= live) break;
          ptx::barrier_wait(Keys::full(block + number + b), Keys::parity(block + number + b));
          if (first + b * D::STEPS + rows.own < steps) rows.template score<1>(block + number + b, s + b);
          rows.send(b, 0, s[b]);
        }
      }
      rows.look_up(first, block + number, trunk, steps, own);
      for (; copied < ::min(blocks, number + D::RING); ++copied) keys.copy_steps(work, turn, copied, block + copied);
      ptx::copy_commit();
      rows.exchange(live, s);
      const bool rise = rows.weigh(factor, number == 0, own, live, s);
      if (number + live == blocks) {
        // This item's queries are no longer needed.
        ptx::barrier_wait(Keys::known(turn + 1), (turn + 1) / 4 & 1);
        if (work_of<S>(turn + 1).steps >= 0) rows.take_queries(work_of<S>(turn + 1), q);
      }
      if (rise)
        rows.template mix<true>(block + number, trunk - first, steps - first, live);
      else
        rows.template mix<false>(block + number, trunk - first, steps - first, live);
      ++rows.go;
    }
    rows.store(work, part_o, part_ml, Z);
    ptx::barrier_arrive_warp(Keys::done(turn), lane);
    block += blocks;
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
                                         const ptx::TensorMap& queries, const ptx::TensorMap& entries, const int32_t* table,
                                         const int32_t* starts, const int32_t* committed, const uint64_t* ancestors,
                                         const __nv_bfloat16* scratch, float scale, int32_t* queue, float* part_o,
                                         float* part_ml, int T, int X, int B, int P, int Z) {
  using namespace mla;
  if constexpr (U::CLUSTER > 1) {
    const SetUp<U, S, Dealt<U::CLUSTER>> next = {pages, table, starts, committed, ancestors, scale, X, B, P, {}};
    shared_items<U, S>({entries, pages, scratch, int(blockIdx.x) % U::CLUSTER}, q, next, part_o, part_ml, Z);
  } else {
    ptx::grid_dependency_wait();
    ptx::grid_dependency_launch();
    const SetUp<U, S, Taken> next = {pages, table, starts, committed, ancestors, scale, X, B, P, {queue}};
    if constexpr (U::GROUPS > 0)
      group_items<U, S>({entries, queries, pages, scratch}, next, part_o, part_ml, Z);
    else if constexpr (U::MT > 0)
      wide_items<U, S>({pages, scratch, q}, next, part_o, part_ml, Z);
    else
      narrow_items<U, S>({pages, scratch, q}, next, part_o, part_ml, Z);
  }
}

}  // namespace kd
