// Which leaf of which stream an item of tree_mla is, and for which rows.
#pragma once

#include "attn/leaves.cuh"

namespace kd {
namespace mla {

// An item: its leaf's region and the items before the region's, its stream, leaf and tile of rows.
struct Item {
  int region, past, stream, leaf, tile;
};

// The streams of a pass, by lanes: the first 32 are loaded once, where there are registers for that.
template <class U>
struct Streams {
  const int32_t *starts, *committed;
  int B;
  Stream first;

  __device__ __forceinline__ Streams(const int32_t* starts, const int32_t* committed, int B)
      : starts(starts), committed(committed), B(B) {
    if constexpr (U::MT == 0) first = Stream::load<U>(starts, committed, B, threadIdx.x % 32);
  }
  __device__ __forceinline__ Stream from(int base) const {
    if constexpr (U::MT == 0)
      if (base == 0) return first;
    return Stream::load<U>(starts, committed, B, base + threadIdx.x % 32);
  }
};

// The work items of a pass. By one warp, as all of these.
template <class U>
__device__ __forceinline__ int count_items(const Streams<U>& streams) {
  int items = 0;
#pragma unroll 1
  for (int base = 0; base < streams.B; base += 32) {
    const Stream own = streams.from(base);
    items += __reduce_add_sync(0xffffffffu, own.leaves * own.tiles<U>());
  }
  return items;
}

// Finds item `item`, which there is, in `region`, with `past` items before it, or a later one. Longer leaves come first, so that CTAs
// end together: by region from the last to the first, then stream by stream, a leaf's tiles next to each other so that its entries
// come from the L2.
template <class U>
__device__ __forceinline__ Item find_item(const Streams<U>& streams, int item, int region, int past) {
  using L = Leaf<U::BASE, U::SHORT>;
  for (;; --region)
#pragma unroll 1
    for (int base = 0, first = past; base < streams.B; base += 32) {
      const Stream own = streams.from(base);
      const int tiles = own.tiles<U>(), end = region < L::LAST ? ::min(own.leaves, L::first_of(region + 1)) : own.leaves;
      const int count = ::max(0, end - L::first_of(region)) * tiles;
      const int all = __reduce_add_sync(0xffffffffu, count);
      if (item < past + all) {
        const int at = item - past - (sum_to_lane(count) - count);
        const bool here = at >= 0 && at < count;
        const int from = __ffs(__ballot_sync(0xffffffffu, here)) - 1;
        const int leaf = here ? end - 1 - at / tiles : 0, tile = here ? at % tiles : 0;
        return {region, first, base + from, __shfl_sync(0xffffffffu, leaf, from), __shfl_sync(0xffffffffu, tile, from)};
      }
      past += all;
    }
}

// Writes stream `index` to `found`, in shared memory.
template <class U>
__device__ __forceinline__ void take_stream(const Streams<U>& streams, int index, Stream* found) {
  int64_t part = 0;
#pragma unroll 1
  for (int base = 0; base <= index; base += 32) {
    Stream own = streams.from(base);
    const int64_t parts = own.parts<U>(), to_lane = sum_to_lane(parts);
    own.part = part + to_lane - parts;
    if (own.index == index) *found = own;
    part += __shfl_sync(0xffffffffu, to_lane, 31);
  }
}

}  // namespace mla
}  // namespace kd
