// How a pass is cut into work: leaves of each stream's keys, and tiles of its query rows.
//
// Leaf boundaries are fixed positions. Leaves get longer along the sequence: BASE tokens up to position SHORT, then, each time
// the position has grown fourfold, twice as long, up to MOST. So their number grows with the root of the context, and which leaf
// a key belongs to depends on its position alone, whatever the stream's length, the other streams and the tree.
#pragma once

#include "kd/base.cuh"
#include "ptx/memory.cuh"

namespace kd {
namespace mla {

constexpr int PAGE = 64;    // tokens in a page
constexpr int KEYS = 16;    // keys that are multiplied together; a tile of keys starts at a multiple of it
constexpr int MOST = 2048;  // tokens in the longest leaf

template <int BASE, int SHORT>
struct Leaf {
  int index, start, length;

  // Calls stop(leaf number of a region's first leaf, its first token, its end, its leaf length) until it is true.
  template <class Stop>
  __device__ __forceinline__ static Leaf find(Stop stop) {
    int first = 0, start = 0, end = SHORT, length = BASE;
    while (length < MOST && !stop(first, start, end, length)) {
      first += (end - start) / length;
      start = end;
      end *= 4;
      length *= 2;
    }
    return {first, start, length};
  }
  __device__ __forceinline__ static int at(int position) {
    const Leaf region = find([=](int, int, int end, int) { return position < end; });
    return region.index + (position - region.start) / region.length;
  }
  // Leaves of one length make a region: BASE << region tokens. The number of its first leaf, its first token, and the last region.
  __device__ __forceinline__ static int first_of(int region) {
    return region == 0 ? 0 : SHORT / BASE + 3 * SHORT / (2 * BASE) * ((1 << region - 1) - 1);
  }
  __device__ __forceinline__ static int start_of(int region) { return region == 0 ? 0 : SHORT << 2 * (region - 1); }
  static constexpr int LAST = BASE == MOST ? 0 : BASE == MOST / 2 ? 1 : BASE == MOST / 4 ? 2 : 3;
  static_assert(BASE << LAST == MOST && SHORT % (2 * BASE) == 0, "whole leaves");
  __device__ __forceinline__ static int region_of(int leaf) {
    int region = LAST;
    while (first_of(region) > leaf) --region;
    return region;
  }
  __device__ __forceinline__ static Leaf number(int leaf, int region) {
    return {leaf, start_of(region) + (leaf - first_of(region)) * (BASE << region), BASE << region};
  }
};

// One stream's share of a pass.
struct Stream {
  int64_t part;                        // the first of its rows of partial results: one a leaf, node and head
  int index, first, nodes, committed;  // its number; its first row of the pass, rows and committed tokens
  int leaves;                          // leaves that its longest path could reach

  // Stream `index` of B, but for its place among partial results; no rows if there is none.
  template <class U>
  __device__ __forceinline__ static Stream load(const int32_t* starts, const int32_t* committed, int B, int index) {
    Stream own = {0, index, 0, 0, 0, 0};
    if (index >= B) return own;
    own.first = ptx::load4(starts + index);
    own.nodes = ::max(0, ptx::load4(starts + index + 1) - own.first);
    own.committed = ::max(0, ptx::load4(committed + index));
    own.leaves = own.nodes > 0 ? Leaf<U::BASE, U::SHORT>::at(own.committed + own.nodes - 1) + 1 : 0;
    return own;
  }
  template <class U>
  __device__ __forceinline__ int64_t parts() const {
    return int64_t(leaves) * nodes * U::H;
  }
  // Tiles of its query rows.
  template <class U>
  __device__ __forceinline__ int tiles() const {
    return (nodes * U::H + U::ROWS - 1) / U::ROWS;
  }
};

// What the lanes up to and with this one have, added up.
template <class T>
__device__ __forceinline__ T sum_to_lane(T own) {
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const T before = __shfl_up_sync(0xffffffffu, own, step);
    if (threadIdx.x % 32 >= step) own += before;
  }
  return own;
}

// Writes the stream that has row `node` of the pass to `found`, in shared memory; whether there is one. Stream b of B has the rows
// from starts[b] to starts[b + 1]. All lanes of a warp call it alike.
template <class U>
__device__ __forceinline__ bool find_stream(const int32_t* starts, const int32_t* committed, int B, int node, Stream* found) {
  int64_t part = 0;
  for (int base = 0; base < B; base += 32) {
    Stream own = Stream::load<U>(starts, committed, B, base + threadIdx.x % 32);
    const int64_t parts = own.parts<U>();
    const int64_t to_lane = sum_to_lane(parts);
    own.part = part + to_lane - parts;
    const bool here = node >= own.first && node < own.first + own.nodes;
    if (here) *found = own;
    if (__any_sync(0xffffffffu, here)) return true;
    part += __shfl_sync(0xffffffffu, to_lane, 31);
  }
  return false;
}

// The ancestors of a node, itself included: bit i is node i + 1; the root is implied.
struct Path {
  uint64_t low, high;

  __device__ __forceinline__ static Path load(const uint64_t* ancestors, int64_t row, bool root) {
    Path path = {0, 0};
    if (root) return path;
    path.low = ptx::load8u(ancestors + 2 * row);
    path.high = ptx::load8u(ancestors + 2 * row + 1);
    return path;
  }
  // Nodes between the root and this one, itself included.
  __device__ __forceinline__ int depth() const { return __popcll(low) + __popcll(high); }

  // The node at `depth` on the path, which has that many.
  __device__ __forceinline__ int node(int depth) const {
    if (depth == 0) return 0;
    const int lower = __popcll(low);
    uint64_t word = depth <= lower ? low : high;
    for (int skip = depth <= lower ? depth - 1 : depth - lower - 1; skip > 0; --skip) word &= word - 1;
    return __ffsll(int64_t(word)) + (depth <= lower ? 0 : 64);
  }
};

}  // namespace mla
}  // namespace kd
