// The parts of entries that the CTAs of a cluster have in shared memory, and the copies of them.
#pragma once

#include "attn/mla_softmax.cuh"
#include "ptx/tensor.cuh"

namespace kd {
namespace mla {

// How a cluster's tile is divided.
template <class U>
struct Division {
  static constexpr int QUARTERS = 4 / U::CLUSTER;    // of an entry: a CTA's
  static constexpr int STEPS = 2 * U::CLUSTER;       // steps of a block
  static constexpr int PAGES = STEPS * KEYS / PAGE;  // of a block
  static constexpr int RING = U::ST / STEPS;         // blocks that are kept
  static constexpr int GROUPS = 8 / STEPS;           // of warps, which take a block's steps in turn
  static constexpr int TILES = U::NT / GROUPS;       // of eight rows: a group's
  static constexpr int ENTRIES = KEYS / GROUPS;      // of a step, which a warp copies
  static constexpr int COLUMNS = U::C / U::CLUSTER;  // of the latent
  // Of 16: a warp's; warps that have them.
  static constexpr int MIXED = (COLUMNS + 127) / 128, MIXING = COLUMNS / (16 * MIXED);
  static constexpr int HOPS = U::CLUSTER / 2;        // exchanges of a block's scores
  static_assert(U::NT % GROUPS == 0 && MIXING <= 8 && U::ST % STEPS == 0 && RING >= 2 * U::GO, "blocks");
  static_assert(STEPS * KEYS % PAGE == 0 && U::GO * STEPS <= 32, "whole pages; a bit for each step");

  // A CTA's part of a page: boxes of its rows and BOX columns, those of the latents first. A driver permutes the four vectors of
  // a row (see ptx/tensor.cuh).
  static constexpr int ROW = U::BOX * 2, BOX_BYTES = PAGE * ROW, LATENTS = COLUMNS / U::BOX, BOXES = LATENTS + ceil_div(U::R, 64);
  static_assert(U::BOX == 32 && U::STEP == PAGE && BOXES * ROW == U::KEY, "32 columns a box");

  // Vector `vec` of row `row` of a box, in bytes.
  __device__ __forceinline__ static uint32_t vector(int row, int vec) { return row * ROW + (vec ^ row / 2 % 4) * 16; }
  // Whether a CTA has columns in its k-th box behind the latents, and the first of them in an entry.
  __device__ __forceinline__ static bool has(int rank, int k) { return rank * QUARTERS + 4 * k < Quarter<U>::ROTATED; }
  __device__ __forceinline__ static int column(int rank, int box) {
    return box < LATENTS ? rank * COLUMNS + box * U::BOX : U::C + 64 * (box - LATENTS) + rank * QUARTERS / 2 * U::BOX;
  }
  // Where product k of quarter j of a CTA's lies, for a lane whose vector of an even product is at `from`.
  __device__ __forceinline__ static uint32_t at(uint32_t from, int rank, int j, int k) {
    const int latent = j * Quarter<U>::LATENT + k;
    if (k < Quarter<U>::LATENT) return (from ^ latent % 2 * 32) + latent / 2 * BOX_BYTES;
    const int odd = QUARTERS == 2 ? j : rank % 2;
    return (from ^ odd * 32) + (LATENTS + k - Quarter<U>::LATENT) * BOX_BYTES;
  }
};

// This CTA's part of entries, on their way into shared memory. One warp looks up items and asks for boxes of whole pages as soon
// as there is room; the others copy the steps that are not of a page that all rows see.
template <class U, class S>
struct Blocks {
  using D = Division<U>;
  static constexpr int WARPS = 8;  // that score and mix

  const ptx::TensorMap& entries;
  const __nv_bfloat16 *pages, *scratch;
  const int rank;

  __device__ __forceinline__ static uint8_t* place(int block, int step) {
    return S::ring() + uint32_t(block) % D::RING * (D::STEPS * KEYS * U::KEY) + step / (PAGE / KEYS) * (PAGE * U::KEY) +
           step % (PAGE / KEYS) * (KEYS * D::ROW);
  }
  __device__ __forceinline__ static uint32_t at(int block, int step) { return ptx::shared_address(place(block, step)); }

  // Barriers: the boxes of a block have arrived, it is mixed; item `turn` is known, is done.
  __device__ __forceinline__ static uint64_t* full(int block) { return S::arrived() + 2 * U::GO * D::HOPS + uint32_t(block) % D::RING; }
  __device__ __forceinline__ static uint64_t* empty(int block) { return full(block) + D::RING; }
  __device__ __forceinline__ static uint64_t* known(int turn) { return S::ready() + (turn & 3); }
  __device__ __forceinline__ static uint64_t* done(int turn) { return known(turn) + 4; }
  __device__ __forceinline__ static uint32_t parity(int block) { return uint32_t(block) / D::RING & 1; }

  // By one thread.
  __device__ __forceinline__ static void prepare() {
    for (int block = 0; block < D::RING; ++block) {
      ptx::barrier_init(full(block), 1);
      ptx::barrier_init(empty(block), ptx::warp_arrivals(WARPS));
    }
    for (int turn = 0; turn < 4; ++turn) {
      ptx::barrier_init(known(turn), 1);
      ptx::barrier_init(done(turn), ptx::warp_arrivals(WARPS));
    }
  }

  // Pages of block `number` of an item that come as boxes.
  __device__ __forceinline__ static int boxed(const Work& work, int number) {
    return ::max(0, ::min(D::PAGES, work.trunk / (PAGE / KEYS) - number * D::PAGES));
  }
  // Asks for the boxes of block `number` of an item as block `block` of the CTA. By one thread.
  __device__ __forceinline__ void ask(const Work& work, int turn, int number, int block) const {
    const int count = boxed(work, number);
    int boxes = 0;
#pragma unroll
    for (int box = 0; box < D::BOXES; ++box) boxes += box < D::LATENTS || D::has(rank, box - D::LATENTS);
    ptx::copies_after_accesses();
    ptx::barrier_arrive_expect(full(block), count * boxes * D::BOX_BYTES);
#pragma unroll
    for (int i = 0; i < D::PAGES; ++i) {
      if (i >= count) break;
      const int row = pages_of<S>(turn)[number * D::PAGES + i] * PAGE;
      uint8_t* to = place(block, i * (PAGE / KEYS));
#pragma unroll
      for (int box = 0; box < D::BOXES; ++box)
        if (box < D::LATENTS || D::has(rank, box - D::LATENTS))
          ptx::tensor_load(to + box * D::BOX_BYTES, entries, D::column(rank, box), row, full(block));
    }
  }
  // Lets the L2 have the pages AHEAD tokens behind block `number`, where a ring holds few more: by the first tile's cluster.
  __device__ __forceinline__ void look_ahead(const Work& work, int turn, int number) const {
    if (work.row > 0 || rank > 0) return;
#pragma unroll
    for (int i = 0; i < D::PAGES; ++i) {
      const int page = number * D::PAGES + AHEAD / PAGE + i;
      if (page * (PAGE / KEYS) >= work.trunk) break;
      ptx::prefetch(pages + int64_t(pages_of<S>(turn)[page]) * PAGE * U::W, 2 * U::W * ::min(PAGE, work.trunk * KEYS - page * PAGE));
    }
  }
  // All items, the first of which is known. By one warp.
  template <class Next>
  __device__ __forceinline__ void supply(Next& set_up) const {
#pragma unroll 1
    for (int turn = 0, block = 0;; ++turn) {
      const Work& work = work_of<S>(turn);
      const int steps = work.steps;
      if (steps < 0) break;
#pragma unroll 1
      for (int number = 0; number * D::STEPS < steps; ++number, ++block) {
        ptx::barrier_wait(empty(block), parity(block) ^ 1);
        if (ptx::elect_one()) {
          ask(work, turn, number, block);
          if constexpr (D::RING * D::STEPS * KEYS < 2 * AHEAD) look_ahead(work, turn, number);
        }
      }
      ptx::barrier_wait(done(turn + 1), (turn + 1) / 4 & 1 ^ 1);
      set_up(turn + 1);
      tell(turn + 1);
    }
  }
  // What this warp has looked up may be read.
  __device__ __forceinline__ static void tell(int turn) {
    __syncwarp();
    if (ptx::elect_one()) ptx::barrier_arrive(known(turn));
  }

  // This warp's entries of its step one by one, entry i from from(i) on.
  template <class From>
  __device__ __forceinline__ void copy(uint32_t to, From from) const {
    constexpr int VECS = D::COLUMNS / 8;  // vectors of 16 bytes in a part of a latent
    const int lane = threadIdx.x % 32, first = threadIdx.x / 32 / D::STEPS * D::ENTRIES;
#pragma unroll
    for (int i = 0; i < D::ENTRIES * VECS / 32; ++i) {
      const int entry = first + (32 * i + lane) / VECS, vec = lane % VECS;
      ptx::copy16(to + vec / 4 * D::BOX_BYTES + D::vector(entry, vec % 4), from(entry) + rank * D::COLUMNS + 8 * vec);
    }
    const int entry = first + lane / 2 % D::ENTRIES, j = lane / (2 * D::ENTRIES), quarter = rank * D::QUARTERS + j;
    const __nv_bfloat16* row = from(entry) + lane % 2 * 8;
#pragma unroll
    for (int k = Quarter<U>::LATENT; k < Quarter<U>::STEPS; ++k)
      if (Quarter<U>::has(quarter, k))
        ptx::copy16(to + (D::LATENTS + k - Quarter<U>::LATENT) * D::BOX_BYTES + D::vector(entry, quarter % 2 * 2 + lane % 2),
                    row + Quarter<U>::at(quarter, k) / 2);
  }
  // What is no box of block `number` of an item: this warp's step, if it has one there.
  __device__ __forceinline__ void copy_steps(const Work& work, int turn, int number, int block) const {
    const int own = threadIdx.x / 32 % D::STEPS, step = number * D::STEPS + own;
    ptx::barrier_wait(empty(block), parity(block) ^ 1);
    if (step < boxed(work, number) * (PAGE / KEYS) + number * D::STEPS || step >= work.steps) return;
    if (step < work.trunk) {
      const __nv_bfloat16* rows =
          pages + (int64_t(pages_of<S>(turn)[step / (PAGE / KEYS)]) * PAGE + step % (PAGE / KEYS) * KEYS) * U::W;
      copy(at(block, own), [=](int entry) { return rows + entry * U::W; });
      return;
    }
    Step found;
    const int lines = gather<U, S>(work, turn, step - work.trunk, found);
    copy(at(block, own), [=](int entry) {
      const int row = __shfl_sync(0xffffffffu, lines, entry);
      return row < 0 ? scratch + int64_t(~row) * U::W : pages + int64_t(row) * U::W;
    });
    if (threadIdx.x % 32 == 0 && threadIdx.x / 32 < D::STEPS) step_of(block, own) = found;
  }
  // What a gathered step of block `block` serves.
  __device__ __forceinline__ static Step& step_of(int block, int step) {
    static_assert(U::ST * sizeof(Step) <= S::STEP_COUNT * sizeof(int32_t), "step");
    return reinterpret_cast<Step*>(S::step())[uint32_t(block) % D::RING * D::STEPS + step];
  }
};

}  // namespace mla
}  // namespace kd
