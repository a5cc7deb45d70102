// Absorbed MLA of tree nodes over pages and scratch: partial results of one leaf of keys for each tile of rows.
//
// A tile is ROWS rows (node, head) of one stream. Keys come in steps of 16 neighbouring positions, each multiplied, and its
// softmax rescaled, on its own; scores are the sum of four quarters of the latent in order. So a row's bits depend on its own
// query and keys, in order of position. While all 16 positions are committed, a step serves every row of the tile. From there
// on each node has steps of its own, gathered along its path from page and scratch: the row cannot tell where a key came from.
//
// A step's scores become weights, each warp those of eight rows; then these mix the latents, each warp an eighth of the columns,
// while the scores of the next step are multiplied, each warp a quarter of the latent. Copies run two steps and more ahead.
#pragma once

#include "attn/mla_work.cuh"
#include "attn/mla_step.cuh"
#include "ptx/pdl.cuh"

namespace kd {

namespace mla {

// A turn of the pipeline: step `now` is weighed, then mixed while the next is multiplied. Either may be absent.
template <class U, class S>
__device__ __forceinline__ void any_turn(const Loader<U, S>& loader, Multiplier<U, S>& rows, int now) {
  const Work& work = work_of<S>();
  const int warp = threadIdx.x / 32;
  if (warp == (now & 7) && work.holds(now + U::ST)) loader.plan(now + U::ST);
  if (work.holds(now + U::ST - 1)) loader.copy_keys(now + U::ST - 1, work.trunk);
  ptx::copy_commit();
  if (now >= 0) rows.template weigh<false>(step_of<S>(now));
  ptx::copy_wait<U::ST - 2>();
  __syncthreads();
  if (now >= 0) {
    const Step step = step_of<S>(now);
    uint32_t values[rows.PAIRS][4], weights[4];
    rows.take_values(now % U::ST, values);
#pragma unroll
    for (int m = 0; m < U::MT; ++m) {
      if (!rows.serves(step, m)) continue;
      rows.scale(m);
      rows.take_weights(m, weights);
      rows.mix(m, weights, values);
    }
  }
  if (work.holds(now + 1)) {
    const Step step = step_of<S>(now + 1);
    bool served = false;
#pragma unroll
    for (int i = 0; i < rows.TILES; ++i) served |= rows.serves(step, rows.tile(i));
    if (served) rows.score((now + 1) % U::ST, (now + 1) % U::RST);
    if (served) rows.share();
  }
  __syncthreads();
}

// The same as long as both steps, and the one that is copied, serve every row with every key. Returns the first step that was
// not mixed.
template <class U, class S>
__device__ __forceinline__ int trunk_turns(const Loader<U, S>& loader, Multiplier<U, S>& rows, int now) {
  const int trunk = work_of<S>().trunk, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const uint32_t to = loader.latents(0) + 2 * warp * U::LATENT + lane / loader.VECS * U::LATENT + lane % loader.VECS * 16;
  const uint32_t to_key = loader.keys(0) + 2 * warp * U::KEY + lane / loader.KEY_VECS * U::KEY + lane % loader.KEY_VECS * 16;
  const __nv_bfloat16* from = loader.trunk_rows(now + U::ST - 1) + loader.first_vector(lane);
#pragma unroll 1
  for (int copied = now + U::ST - 1; copied < trunk; ++copied, ++now) {
    if (copied % (PAGE / KEYS) == 0) from = loader.trunk_rows(copied) + loader.first_vector(lane);
    loader.copy_pair(from, to + copied % U::ST * (KEYS * U::LATENT), to_key + copied % U::RST * (KEYS * U::KEY));
    ptx::copy_commit();
    from += KEYS * U::W;
    rows.template weigh<true>(Step{});
    ptx::copy_wait<U::ST - 2>();
    __syncthreads();
    rows.scale_all();
    rows.mix_all(now % U::ST);
    rows.score((now + 1) % U::ST, (now + 1) % U::RST);
    rows.share();
    __syncthreads();
  }
  return now;
}

}  // namespace mla

template <class U, class S>
__device__ __forceinline__ void tree_mla(const __nv_bfloat16* q, const __nv_bfloat16* pages, const int32_t* table,
                                         const int32_t* starts, const int32_t* committed, const uint64_t* ancestors,
                                         const __nv_bfloat16* scratch, float scale, float* part_o, float* part_ml, int T,
                                         int X, int B, int P, int Z) {
  using namespace mla;
  const int warp = threadIdx.x / 32;
  ptx::grid_dependency_wait();
  const Loader<U, S> loader{pages, scratch, q};
  if (threadIdx.x == 0) work_of<S>().item = blockIdx.x;
  while (true) {
    if (warp == 0) set_up<U, S>(table, starts, committed, ancestors, scale, X, B, P);
    __syncthreads();
    const Work& work = work_of<S>();
    if (work.steps < 0) break;
    if (work.steps > 0) {
      loader.copy_queries();
      if (warp == 0)
        for (int i = 0; i < U::ST - 1; ++i)
          if (work.holds(i)) loader.plan(i);
      ptx::copy_wait<0>();
      __syncthreads();
      Multiplier<U, S> rows;
      rows.factor = work.factor;
      rows.take_queries();
      __syncthreads();
      for (int i = 0; i < U::ST - 2; ++i) {
        if (work.holds(i)) loader.copy_keys(i, work.trunk);
        ptx::copy_commit();
      }
      any_turn(loader, rows, -1);
      int now = 0;
      if (U::ST - 1 < work.trunk) {
        now = trunk_turns(loader, rows, 0);
        // Steps that were copied there have not been planned.
        if (warp == 0)
          for (int i = 0; i < U::ST; ++i)
            if (work.holds(now + i)) loader.plan(now + i);
        __syncthreads();
      }
#pragma unroll 1
      for (; now < work.steps; ++now) any_turn(loader, rows, now);
      rows.store(part_o, part_ml, Z);
    }
    __syncthreads();  // the work's description is read to the end
  }
}

}  // namespace kd
