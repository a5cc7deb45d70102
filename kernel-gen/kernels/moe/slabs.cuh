// The slabs of the experts for the form of many rows: rows of one expert, about as many in each of its slabs, those with most
// tiles of 8 first; and the order in which CTAs take them.
#pragma once

#include "kd/base.cuh"
#include "ptx/memory.cuh"

namespace kd {
namespace moe {

// At most `most` tiles of 8 rows a slab: how many slabs, and the tiles of the largest.
struct Split {
  int tiles, slabs, largest;

  __device__ __forceinline__ Split(int rows, int most) {
    tiles = (rows + 7) / 8;
    slabs = (tiles + most - 1) / most;
    largest = slabs == 0 ? 0 : (tiles + slabs - 1) / slabs;
  }
  // The tiles before slab `i`: the first `tiles % slabs` have one more than the others.
  __device__ __forceinline__ int before(int i) const { return tiles / slabs * i + ::min(i, tiles % slabs); }
};

struct Slab {
  int expert, first, rows;
};

// Items are STEPS for each slab. Turn by turn the CTAs take as many as there are CTAs, in every other turn from the end: slabs get
// smaller, so the sums of what each has come out nearly equal.
template <int STEPS>
struct SlabOrder {
  const int32_t* slabs;
  int share, total;

  __device__ __forceinline__ int index(int turn) const {
    return turn * int(gridDim.x) + (turn & 1 ? int(gridDim.x) - 1 - share : share);
  }
  __device__ __forceinline__ int step(int index) const { return index % STEPS; }
  __device__ __forceinline__ Slab slab(int index) const {
    const uint4 v = ptx::load16(slabs + 4 * (index / STEPS));
    return {int(v.x), int(v.y), int(v.z)};
  }
};

}  // namespace moe
}  // namespace kd
