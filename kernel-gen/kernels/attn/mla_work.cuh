// The work items of tree_mla, and the copies of their queries and keys into a ring in shared memory.
#pragma once

#include "attn/mla_fp8.cuh"
#include "attn/mla_items.cuh"
#include "ptx/bulk.cuh"
#include "ptx/exchange.cuh"

namespace kd {
namespace mla {

constexpr int AHEAD = 256;  // tokens that clusters ask the L2 for ahead of their copies

// One leaf of one stream for a tile of its rows. Four are kept: one's results leave, the next is worked on, and another is looked
// up. By warpgroups one is scored, two are asked for and another is looked up; who mixes the one before them has read of it what is
// needed by then.
struct Work {
  Stream stream;
  int64_t part;     // the tile's first row of partial results
  int steps;        // steps of keys, at least one; negative: no items are left
  int row, rows;    // the tile: first (node, head) of the stream, and how many
  int start;        // the leaf's first token
  int trunk;        // steps that serve all rows
  int node, count;  // nodes that the tile has rows of
  int entry;        // wide tiles: number of the ring's entry that the first step is
  int tail, limit;  // first step of keys that are gathered by node, and the leaf's end, both in steps from position 0
  int items;        // that the pass has
  int region, past;  // the leaf's region, and the items before the region's
  float factor;     // on scores, with log2 e; NaN if the page table is not of this cache
};

struct alignas(16) Step {
  int low, high;  // rows of the tile that it serves
  int keys;       // keys that they see, of 16; negative: a path that does not exist
  int round;      // which of its rows' own steps it is
};

template <class S>
__device__ __forceinline__ Work& work_of(int turn) {
  static_assert(4 * sizeof(Work) <= S::WORK_COUNT * sizeof(int32_t), "work");
  return reinterpret_cast<Work*>(S::work())[turn & 3];
}

// What the ring's entry of this number serves, if it is gathered. The latest sixteen are kept.
template <class S>
__device__ __forceinline__ Step& gathered_step(int number) {
  static_assert(16 * sizeof(Step) <= S::STEP_COUNT * sizeof(int32_t), "step");
  return reinterpret_cast<Step*>(S::step())[number & 15];
}

template <class U, class S>
__device__ __forceinline__ uint64_t* paths_of(int turn) {
  return S::paths() + (turn & 3) * 2 * U::NODES;
}
template <class S>
__device__ __forceinline__ int32_t* pages_of(int turn) {
  return S::page() + (turn & 3) * (MOST / PAGE);
}

// Steps of its own that a node `depth` below the root has in this leaf.
__device__ __forceinline__ int own_steps(const Work& work, int depth) {
  return ::max(0, ::min(work.limit, (work.stream.committed + depth) / KEYS + 1) - work.tail);
}

// A CTA's first item is the one of its own number, the others are taken as they come. `items`: no fewer than there are.
struct Taken {
  int32_t* queue;

  __device__ __forceinline__ int operator()(bool first, int items) {
    int item = blockIdx.x;
    if (first || item >= items) return item;
    item = gridDim.x;
    if (item < items && threadIdx.x % 32 == 0) item += atomicAdd(queue, 1);
    return __shfl_sync(0xffffffffu, item, 0);
  }
};
// The items of a cluster of CTAs CTAs are those of its number and every one as many further as there are clusters.
template <int CTAS>
struct Dealt {
  int next = blockIdx.x / CTAS;

  __device__ __forceinline__ int operator()(bool, int) {
    const int item = next;
    next += gridDim.x / CTAS;
    return item;
  }
};

// Looks up the CTA's next item that has any keys, number `turn` of those it does. By one warp; what is found is written down at
// once and read again: registers are scarce.
template <class U, class S, class Take>
__device__ __forceinline__ void set_up(int turn, const Stored<U>* pages, const int32_t* table,
                                       const int32_t* starts, const int32_t* committed,
                                       const uint64_t* ancestors, float scale, Take& take, int X, int B, int P) {
  const int lane = threadIdx.x % 32;
  Work& work = work_of<S>(turn);
  const Work& last = work_of<S>(turn - 1);
  // One stream needs no search.
  const bool alone = B == 1;
  const Streams<U> streams(starts, committed, turn > 0 && alone ? 0 : B);
  if (turn == 0 && alone) {
    const Stream own = streams.from(0);
    if (lane == 0) work.stream = own;
    __syncwarp();
  }
  const int items = turn > 0 ? last.items : alone ? work.stream.leaves * work.stream.tiles<U>() : count_items<U>(streams);
  int region = Leaf<U::BASE, U::SHORT>::LAST, past = 0;
  if (turn > 0) region = last.region, past = last.past;
  for (bool first = turn == 0;; first = false) {
    const int item = take(first, items);
    if (item >= items) {
      if (lane == 0) work.steps = -1;
      __syncwarp();
      return;
    }
    Item found;
    if (alone) {
      const int tiles = (turn == 0 ? work : last).stream.tiles<U>(), leaf = (turn == 0 ? work : last).stream.leaves - 1 - item / tiles;
      found = {Leaf<U::BASE, U::SHORT>::region_of(leaf), 0, 0, leaf, item % tiles};
    } else {
      found = find_item<U>(streams, item, region, past);
    }
    region = found.region, past = found.past;
    if (turn > 0 && found.stream == last.stream.index) {
      if (lane == 0) work.stream = last.stream;
    } else if (!alone) {
      take_stream<U>(streams, found.stream, &work.stream);
    }
    __syncwarp();
    const Stream& stream = work.stream;
    const Leaf<U::BASE, U::SHORT> leaf = Leaf<U::BASE, U::SHORT>::number(found.leaf, found.region);
    const int end = leaf.start + leaf.length, row = found.tile * U::ROWS;
    const int rows = ::min(U::ROWS, stream.nodes * U::H - row);
    const int node = row / U::H, count = (row + rows - 1) / U::H - node + 1;
    // Page ids and masks come from memory together.
    static_assert(MOST / PAGE <= 32 && U::NODES <= 32, "a lane for each page and node");
    const int at = leaf.start / PAGE + lane;
    const bool paged = at * PAGE < ::min(end, stream.committed);
    int page = -1;
    if (paged && at < P) page = ptx::load4(table + int64_t(stream.index) * P + at);
    Path path = {0, 0};
    if (lane < count) path = Path::load(ancestors, stream.first + node + lane, node + lane == 0);
    if (lane == 0) {
      work.row = row;
      work.rows = rows;
      work.part = stream.part + int64_t(leaf.index) * stream.nodes * U::H + row;
      work.start = leaf.start;
      work.limit = end / KEYS;
      work.tail = ::max(stream.committed, leaf.start) / KEYS;
      work.trunk = ::max(0, ::min(work.tail, work.limit) - leaf.start / KEYS);
      work.node = node;
      work.count = count;
      work.factor = scale;
      work.items = items;
      work.region = region;
      work.past = past;
    }
    __syncwarp();
    int steps = lane < count ? own_steps(work, path.depth()) : 0;
    if (lane < count) {
      paths_of<U, S>(turn)[2 * lane] = path.low;
      paths_of<U, S>(turn)[2 * lane + 1] = path.high;
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) steps += __shfl_xor_sync(0xffffffffu, steps, step);
    const bool there = page >= 0 && page < X;
    const bool all = __all_sync(0xffffffffu, there || !paged);
    // What a cluster asks for first comes to the L2 while it still waits for the queries.
    if constexpr (U::CLUSTER > 1)
      if (there && lane < AHEAD / PAGE && row == 0 && blockIdx.x % U::CLUSTER == 0)
        ptx::prefetch(pages + int64_t(page) * PAGE * U::W, 2 * U::W * ::min(PAGE, stream.committed - at * PAGE));
    pages_of<S>(turn)[lane] = there ? page : 0;
    if (lane == 0) {
      work.steps = work.trunk + steps;
      if constexpr (U::MT > 0) {
        // After the queries, each item from the ring's first place on.
        const Work& before = work_of<S>(turn - 1);
        work.entry = U::MT;
        if (turn > 0) work.entry += before.entry + (before.steps + U::ST - 1) / U::ST * U::ST;
      }
      // From shared memory: else the product waits in a register for the items to come.
      work.factor = all ? work.factor * 1.44269504088896f : __int_as_float(0x7fffffff);
    }
    __syncwarp();
    if (work.trunk + steps > 0) return;
  }
}

// The same for an item's number alone. A type of its own, since a lambda that is called twice may stay a call.
template <class U, class S, class Take>
struct SetUp {
  const Stored<U>* pages;
  const int32_t *table, *starts, *committed;
  const uint64_t* ancestors;
  float scale;
  int X, B, P;
  Take take;

  __device__ __forceinline__ void operator()(int turn) {
    set_up<U, S>(turn, pages, table, starts, committed, ancestors, scale, take, X, B, P);
  }
};

// Step `number` of those that are gathered: whose it is, and where this lane's row of it lies: among the pages' rows, or the
// complement of a row of scratch.
template <class U, class S>
__device__ __forceinline__ int gather(const Work& work, int turn, int number, Step& step) {
  const int lane = threadIdx.x % 32;
  const uint64_t* paths = paths_of<U, S>(turn);
  Path path = {0, 0};
  if (lane < work.count) path = {paths[2 * lane], paths[2 * lane + 1]};
  const int own = lane < work.count ? own_steps(work, path.depth()) : 0;
  // All nodes' first steps, then the second ones, and so on: neighbours serve different rows.
  step.round = 0;
  uint32_t nodes = __ballot_sync(0xffffffffu, own > 0);
  for (; number >= __popc(nodes); nodes = __ballot_sync(0xffffffffu, own > ++step.round)) number -= __popc(nodes);
  const bool chosen = nodes >> lane & 1 && __popc(nodes & ((1u << lane) - 1)) == number;
  const int node = __ffs(__ballot_sync(0xffffffffu, chosen)) - 1;
  const int position = KEYS * (work.tail + step.round) + lane % KEYS;
  path = {paths[2 * node], paths[2 * node + 1]};
  const int depth = path.depth(), committed = work.stream.committed;
  step.low = ::max(0, (work.node + node) * U::H - work.row);
  step.high = ::min(work.rows, (work.node + node + 1) * U::H - work.row);
  step.keys = ::min(KEYS, committed + depth + 1 - (position - lane % KEYS));
  int place = ~work.stream.first;
  bool there = true;
  if (position < committed) {
    place = pages_of<S>(turn)[(position - work.start) / PAGE] * PAGE + position % PAGE;
  } else {
    // Positions that the node does not see repeat its own key: finite if the node's own is, and weighted with zero.
    const int ancestor = path.node(::min(position - committed, depth));
    there = ancestor < work.stream.nodes;
    if (there) place = ~(work.stream.first + ancestor);
  }
  if (!__all_sync(0xffffffffu, there)) step.keys = -1;
  return place;
}

// Fills the ring: the entries of an item are its tiles of queries and then its steps of keys, and the next item's follow. All
// warps copy, two rows of each 16.
template <class U, class S>
struct Feed {
  static constexpr int TILES = (U::ROWS + KEYS - 1) / KEYS;  // entries of queries

  const Stored<U>* pages;
  const __nv_bfloat16 *scratch, *q;
  int turn = 0;         // the item that is being requested
  int entry = 0;        // its next entry
  int count = 0;        // entries requested so far
  uint32_t stored = 0;  // FP8: which of this warp's two rows of each slot hold codes

  __device__ __forceinline__ static uint32_t at(int slot) {
    return ptx::shared_address(S::ring()) + slot * (KEYS * U::KEY);
  }

  // Makes the barriers of the slots, by one thread.
  __device__ __forceinline__ static void prepare() {
    for (int slot = 0; slot < U::ST; ++slot) ptx::barrier_init(S::arrived() + slot, U::BLOCK / 32);
    if constexpr (U::MT > 0) {
      const auto warps = [](int barrier, int count) { ptx::barrier_init(S::ready() + barrier, ptx::warp_arrivals(count)); };
      warps(0, 4), warps(1, 4), warps(2, 8);
      if constexpr (U::FP8) warps(3, 8);
    }
    ptx::barriers_ready();
  }

  // Two rows, `even` and `odd`, to rows 2 * warp and the next of a slot.
  __device__ __forceinline__ static void copy(const __nv_bfloat16* even, const __nv_bfloat16* odd, int slot,
                                              int warp = threadIdx.x / 32) {
    if (!ptx::elect_one()) return;
    ptx::copies_after_accesses();
    uint8_t* to = S::ring() + (slot * KEYS + warp * 2) * U::KEY;
    ptx::barrier_arrive_expect(S::arrived() + slot, 4 * U::W);
    ptx::bulk_load(to, even, 2 * U::W, S::arrived() + slot);
    ptx::bulk_load(to + U::KEY, odd, 2 * U::W, S::arrived() + slot);
  }

  // The same for two of FP8 pages or of scratch.
  __device__ __forceinline__ void ask(int even, int odd, int slot) {
    const int row = slot * KEYS + threadIdx.x / 32 * 2;
    ask_two<U>(S::ring() + row * U::KEY, pages, scratch, even, odd, S::arrived() + slot);
    mark(slot, (even >= 0 ? 1 : 0) | (odd >= 0 ? 2 : 0));
  }
  __device__ __forceinline__ void mark(int slot, uint32_t rows) {
    stored = (stored & ~(3u << 2 * slot)) | rows << 2 * slot;
  }
  // Makes values of what this warp asked of FP8 pages for a slot that has arrived. Other warps see them once they are told.
  __device__ __forceinline__ void expand(int slot) const {
    expand_two<U>(S::ring() + (slot * KEYS + threadIdx.x / 32 * 2) * U::KEY, stored >> 2 * slot);
  }

  // This warp's first row of a step that serves all rows.
  __device__ __forceinline__ const __nv_bfloat16* trunk_rows(int turn, int number) const {
    const int64_t page = pages_of<S>(turn)[uint32_t(number) / (PAGE / KEYS)];
    return pages + (page * PAGE + uint32_t(number) % (PAGE / KEYS) * KEYS + threadIdx.x / 32 * 2) * U::W;
  }

  __device__ __forceinline__ const __nv_bfloat16* row_at(int place) const {
    return place < 0 ? scratch + int64_t(~place) * U::W : pages + int64_t(place) * U::W;
  }

  // Asks for a step that serves all rows.
  __device__ __forceinline__ void ask_trunk(int turn, int number, int slot) {
    const int step = pages_of<S>(turn)[uint32_t(number) / (PAGE / KEYS)] * (PAGE / KEYS) + uint32_t(number) % (PAGE / KEYS);
    const int warp = threadIdx.x / 32;
    ask_entries<U>(S::ring() + (slot * KEYS + warp * 2) * U::KEY, pages + int64_t(step * KEYS + warp * 2) * U::ENTRY,
                   S::arrived() + slot);
    mark(slot, 3);
  }

  // Requests entry `entry` of an item.
  __device__ __forceinline__ void request(const Work& work) const {
    const int warp = threadIdx.x / 32, number = entry - TILES;
    const __nv_bfloat16 *even, *odd;
    if (number >= 0 && number < work.trunk) {
      even = trunk_rows(turn, number);
      odd = even + U::W;
    } else if (number < 0) {
      // Rows beyond the tile's repeat its last.
      const int64_t first = int64_t(work.stream.first) * U::H + work.row;
      even = q + (first + ::min(KEYS * entry + 2 * warp, work.rows - 1)) * U::W;
      odd = q + (first + ::min(KEYS * entry + 2 * warp + 1, work.rows - 1)) * U::W;
    } else {
      Step step;
      const int place = gather<U, S>(work, turn, number - work.trunk, step);
      even = row_at(__shfl_sync(0xffffffffu, place, 2 * warp));
      odd = row_at(__shfl_sync(0xffffffffu, place, 2 * warp + 1));
      if (threadIdx.x == 0) gathered_step<S>(count) = step;
    }
    copy(even, odd, uint32_t(count) % U::ST);
  }
  // The same with FP8 pages.
  __device__ __forceinline__ void request_stored(const Work& work) {
    const int warp = threadIdx.x / 32, number = entry - TILES, slot = uint32_t(count) % U::ST;
    if (number < 0) {
      const int64_t first = int64_t(work.stream.first) * U::H + work.row;
      const auto row = [&](int i) { return q + (first + ::min(KEYS * entry + 2 * warp + i, work.rows - 1)) * U::W; };
      copy(row(0), row(1), slot);
      mark(slot, 0);
    } else if (number < work.trunk) {
      ask_trunk(turn, number, slot);
    } else {
      Step step;
      const int place = gather<U, S>(work, turn, number - work.trunk, step);
      ask(__shfl_sync(0xffffffffu, place, 2 * warp), __shfl_sync(0xffffffffu, place, 2 * warp + 1), slot);
      if (threadIdx.x == 0) gathered_step<S>(count) = step;
    }
  }

  // Requests the next entry, of items up to number `last`. Whether there was one to request.
  __device__ __forceinline__ bool next(int last) {
    const Work* work = &work_of<S>(turn);
    if (work->steps >= 0 && entry == TILES + work->steps) {
      if (turn == last) return false;
      work = &work_of<S>(++turn);
      entry = 0;
    }
    if (work->steps < 0) return false;
    if constexpr (U::FP8)
      request_stored(*work);
    else
      request(*work);
    passed(1);
    return true;
  }
  // Requests what there is room for if the entries before number `freed` are no longer needed.
  __device__ __forceinline__ void fill(int freed, int last) {
    while (count < freed + U::ST && next(last)) {}
  }
  __device__ __forceinline__ void passed(int entries) {
    entry += entries;
    count += entries;
  }

  // Waits for entry `number`.
  __device__ __forceinline__ static void wait(int number) {
    ptx::barrier_wait(S::arrived() + uint32_t(number) % U::ST, uint32_t(number) / U::ST & 1);
  }
};

}  // namespace mla
}  // namespace kd
