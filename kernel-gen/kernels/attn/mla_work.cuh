// One work item of tree_mla, and the copies of its queries and keys into shared memory.
#pragma once

#include "attn/leaves.cuh"
#include "ptx/copy.cuh"

namespace kd {
namespace mla {

struct Work {
  Stream stream;
  int64_t part;     // the tile's first row of partial results
  int item;         // the work item that the CTA does next
  int steps;        // steps of keys; none: nothing to do; negative: no items are left
  int row, rows;    // the tile: first (node, head) of the stream, and how many
  int start, end;   // the leaf in tokens
  int trunk;        // steps that serve all rows
  int node, count;  // nodes that the tile has rows of
  int tail, limit;  // first step of keys that are gathered by node, and the leaf's end, both in steps from position 0
  int own, own_at;  // the next gathered step: which of the nodes, and its place in steps from position 0
  float factor;     // on scores, with log2 e; NaN if the page table is not of this cache

  __device__ __forceinline__ bool holds(int step) const { return uint32_t(step) < uint32_t(steps); }
};

struct alignas(16) Step {
  int low, high;  // rows of the tile that it serves
  int keys;       // keys that they see, of 16; negative: a page that does not exist
};

template <class S>
__device__ __forceinline__ Work& work_of() {
  static_assert(sizeof(Work) <= S::WORK_COUNT * sizeof(int32_t), "work");
  return *reinterpret_cast<Work*>(S::work());
}

// The latest eight steps are kept.
template <class S>
__device__ __forceinline__ Step& step_of(int number) {
  static_assert(8 * sizeof(Step) <= S::STEP_COUNT * sizeof(int32_t), "step");
  return reinterpret_cast<Step*>(S::step())[number % 8];
}

// By one warp. What is found is written down at once and read again: registers are scarce.
template <class U, class S>
__device__ __forceinline__ void set_up(const int32_t* table, const int32_t* starts, const int32_t* committed,
                                       const uint64_t* ancestors, float scale, int X, int B, int P) {
  const int lane = threadIdx.x % 32;
  Work& work = work_of<S>();
  __syncwarp();
  const int item = work.item;
  const bool found = find_stream<U>(starts, committed, B, &work.stream, [=](const Stream& own, int items) {
    return item >= own.item && item < own.item + items;
  });
  if (!found) {
    if (lane == 0) work.steps = -1;
    __syncwarp();
    return;
  }
  __syncwarp();
  if (lane == 0) {
    const Stream stream = work.stream;
    const int tiles = (stream.nodes * U::H + U::ROWS - 1) / U::ROWS, place = item - stream.item;
    const Leaf<U::BASE> leaf = Leaf<U::BASE>::number(stream.leaves - 1 - place / tiles);
    work.row = place % tiles * U::ROWS;
    work.rows = ::min(U::ROWS, stream.nodes * U::H - work.row);
    work.part = stream.part + int64_t(leaf.index) * stream.nodes * U::H + work.row;
    work.start = leaf.start;
    work.end = leaf.start + leaf.length;
    work.limit = work.end / KEYS;
    work.tail = ::max(stream.committed, leaf.start) / KEYS;
    work.trunk = ::max(0, ::min(work.tail, work.limit) - leaf.start / KEYS);
    work.node = work.row / U::H;
    work.count = (work.row + work.rows - 1) / U::H - work.node + 1;
    work.item = item + gridDim.x;
    work.own = 0;
    work.own_at = work.tail;
  }
  __syncwarp();
  int own_steps = 0;
  for (int i = lane; i < work.count; i += 32) {
    const int node = work.node + i;
    const Path path = Path::load(ancestors, work.stream.first + node, node == 0);
    S::paths()[2 * i] = path.low;
    S::paths()[2 * i + 1] = path.high;
    own_steps += ::max(0, ::min(work.limit, (work.stream.committed + path.depth()) / KEYS + 1) - work.tail);
  }
  bool there = true;
  for (int i = lane; i < (::min(work.end, work.stream.committed) - work.start + PAGE - 1) / PAGE; i += 32) {
    const int at = work.start / PAGE + i;
    const int page = at < P ? ptx::load4(table + int64_t(work.stream.index) * P + at) : -1;
    there = there && page >= 0 && page < X;
    S::page()[i] = page >= 0 && page < X ? page : 0;
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) own_steps += __shfl_xor_sync(0xffffffffu, own_steps, step);
  there = __all_sync(0xffffffffu, there);
  if (lane == 0) {
    work.steps = work.trunk + own_steps;
    work.factor = there ? scale * 1.44269504088896f : __int_as_float(0x7fffffff);
  }
  __syncwarp();
}

// Copies of rows into the ring. All warps copy, two rows of each 16. Where the rows of a node's own step lie, one warp has
// written down before.
template <class U, class S>
struct Loader {
  const __nv_bfloat16 *pages, *scratch, *q;

  __device__ __forceinline__ static uint32_t latents(int slot) {
    return ptx::shared_address(S::latents() + slot * (KEYS * U::LATENT));
  }
  __device__ __forceinline__ static uint32_t keys(int slot) {
    return ptx::shared_address(S::keys() + slot * (KEYS * U::KEY));
  }
  // The rotated parts of the queries lie where scores are shared later.
  __device__ __forceinline__ static uint32_t query_keys(int tile) {
    return ptx::shared_address(S::scores()) + tile * (KEYS * U::KEY);
  }

  // 16-byte vectors of an entry's latent, and of its rotated key.
  static constexpr int VECS = U::C / 8, KEY_VECS = U::R / 8;

  // Two rows, `even` and `odd`, to rows 2 * warp and the next.
  __device__ __forceinline__ static void copy(const __nv_bfloat16* even, const __nv_bfloat16* odd, uint32_t latents,
                                              uint32_t keys) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    latents += 2 * warp * U::LATENT;
    keys += 2 * warp * U::KEY;
#pragma unroll
    for (int i = 0; i < 2 * VECS / 32; ++i) {
      const int vec = 32 * i + lane, row = vec / VECS;
      ptx::copy16(latents + row * U::LATENT + vec % VECS * 16, (row ? odd : even) + vec % VECS * 8);
    }
    const int row = lane / KEY_VECS;
    if (lane < 2 * KEY_VECS)
      ptx::copy16(keys + row * U::KEY + lane % KEY_VECS * 16, (row ? odd : even) + U::C + lane % KEY_VECS * 8);
  }

  // The same for neighbouring rows. `from` is this lane's first vector, `to_key` where its part of the rotated keys goes.
  __device__ __forceinline__ static void copy_pair(const __nv_bfloat16* from, uint32_t to, uint32_t to_key) {
    static_assert(VECS % 32 == 0 || 32 % VECS == 0, "a warp copies whole rows or shares of one");
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < 2 * VECS / 32; ++i)
      ptx::copy16(to + 32 * i / VECS * U::LATENT + 32 * i % VECS * 16, from + 32 * i / VECS * U::W + 32 * i % VECS * 8);
    if (lane < 2 * KEY_VECS) ptx::copy16(to_key, from + key_vector(lane) - first_vector(lane));
  }
  __device__ __forceinline__ static int first_vector(int lane) { return lane / VECS * U::W + lane % VECS * 8; }
  __device__ __forceinline__ static int key_vector(int lane) {
    return lane / KEY_VECS * U::W + U::C + lane % KEY_VECS * 8;
  }

  __device__ __forceinline__ void copy_queries() const {
    const Work& work = work_of<S>();
    const int row = threadIdx.x / 32 * 2;
    for (int i = 0; i < U::MT; ++i) {
      // Rows beyond the tile's repeat its last.
      const int64_t first = int64_t(work.stream.first) * U::H + work.row;
      const __nv_bfloat16* even = q + (first + ::min(16 * i + row, work.rows - 1)) * U::W;
      const __nv_bfloat16* odd = q + (first + ::min(16 * i + row + 1, work.rows - 1)) * U::W;
      copy(even, odd, latents(i), query_keys(i));
    }
    ptx::copy_commit();
  }

  // This warp's first row of step `number`, which serves all rows.
  __device__ __forceinline__ const __nv_bfloat16* trunk_rows(int number) const {
    const int64_t page = S::page()[number / (PAGE / KEYS)];
    return pages + (page * PAGE + number % (PAGE / KEYS) * KEYS + int(threadIdx.x) / 32 * 2) * U::W;
  }

  __device__ __forceinline__ void copy_keys(int number, int trunk) const {
    const __nv_bfloat16 *even, *odd;
    if (number < trunk) {
      even = trunk_rows(number);
      odd = even + U::W;
    } else {
      const int2 places = reinterpret_cast<const int2*>(S::places() + number % 4 * KEYS)[threadIdx.x / 32];
      even = row_at(places.x);
      odd = row_at(places.y);
    }
    copy(even, odd, latents(number % U::ST), keys(number % U::RST));
  }

  // A place among the pages' rows, or the complement of one in scratch.
  __device__ __forceinline__ const __nv_bfloat16* row_at(int place) const {
    return place < 0 ? scratch + int64_t(~place) * U::W : pages + int64_t(place) * U::W;
  }

  // Writes down what step `number` serves, and where its rows are. By one warp; steps are planned in order.
  __device__ __forceinline__ static void plan(int number) {
    Work& work = work_of<S>();
    const int lane = threadIdx.x % 32;
    Step step = {0, work.rows, KEYS};
    if (number >= work.trunk) {
      Path path;
      int own = work.own, at = work.own_at, depth;
      for (;; ++own, at = work.tail) {
        path = {S::paths()[2 * own], S::paths()[2 * own + 1]};
        depth = path.depth();
        if (at < ::min(work.limit, (work.stream.committed + depth) / KEYS + 1)) break;
      }
      __syncwarp();
      work.own = own;  // the same from every lane
      work.own_at = at + 1;
      step.low = ::max(0, (work.node + own) * U::H - work.row);
      step.high = ::min(work.rows, (work.node + own + 1) * U::H - work.row);
      step.keys = ::min(KEYS, work.stream.committed + depth + 1 - KEYS * at);
      const int position = KEYS * at + lane % KEYS;
      int place = ~work.stream.first;
      bool there = true;
      if (position < work.stream.committed) {
        place = S::page()[(position - work.start) / PAGE] * PAGE + position % PAGE;
      } else {
        // Positions that the node does not see repeat its own key: finite if the node's own is, and weighted with zero.
        const int ancestor = path.node(::min(position - work.stream.committed, depth));
        there = ancestor < work.stream.nodes;
        if (there) place = ~(work.stream.first + ancestor);
      }
      if (!__all_sync(0xffffffffu, there)) step.keys = -1;
      if (lane < KEYS) S::places()[number % 4 * KEYS + lane] = place;
    }
    if (lane == 0) step_of<S>(number) = step;
  }
};

}  // namespace mla
}  // namespace kd
