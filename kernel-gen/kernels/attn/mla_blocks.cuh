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
  static constexpr int GROUPS = 8 / STEPS;           // of warps, which take a block's steps in turn
  static constexpr int TILES = U::NT / GROUPS;       // of eight rows: a group's
  static constexpr int ENTRIES = KEYS / GROUPS;      // of a step, which a warp copies
  static constexpr int COLUMNS = U::C / U::CLUSTER;  // of the latent
  // Of 16: a warp's; warps that have them.
  static constexpr int MIXED = (COLUMNS + 127) / 128, MIXING = COLUMNS / (16 * MIXED);
  static constexpr int HOPS = U::CLUSTER / 2;        // exchanges of a block's scores
  static_assert(U::NT % GROUPS == 0 && MIXING <= 8 && U::ST == 2 * STEPS && U::ROWS <= KEYS * STEPS, "two blocks");

  // A CTA's part of the entries of a step: boxes of KEYS rows and BOX columns, those of the latents first. A driver permutes the
  // four vectors of a row (see ptx/tensor.cuh).
  static constexpr int BOX_BYTES = KEYS * U::BOX * 2, LATENTS = COLUMNS / U::BOX, BOXES = LATENTS + ceil_div(U::R, 64);
  static_assert(U::BOX == 32 && BOXES * BOX_BYTES == KEYS * U::KEY, "32 columns a box");

  // Vector `vec` of row `row` of a box, in bytes.
  __device__ __forceinline__ static uint32_t vector(int row, int vec) { return row * 64 + (vec ^ row / 2 % 4) * 16; }
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

// This CTA's part of entries, on their way into shared memory: two blocks, of an item first its queries, then its steps.
template <class U, class S>
struct Blocks {
  using D = Division<U>;

  const ptx::TensorMap& entries;
  const __nv_bfloat16 *pages, *scratch, *q;
  const int rank;
  int turn = 0;          // the item that is being requested
  int step = -D::STEPS;  // its first step of the next block; negative: its queries
  int count = 0;         // blocks requested so far

  __device__ __forceinline__ static uint8_t* place(int block, int step) {
    return S::ring() + ((block & 1) * D::STEPS + step) * (KEYS * U::KEY);
  }
  __device__ __forceinline__ static uint32_t at(int block, int step) { return ptx::shared_address(place(block, step)); }

  // Counts the boxes of a block and, of each warp, that it has asked for them.
  __device__ __forceinline__ static uint64_t* arrived(int block) { return S::arrived() + 2 * D::HOPS + (block & 1); }

  // This warp's share of its step's boxes, from row `row` of the pages on.
  __device__ __forceinline__ void copy_boxes(int own, int row) const {
    if (!ptx::elect_one()) return;
    const int group = threadIdx.x / 32 / D::STEPS;
    uint8_t* to = place(count, own);
    int boxes = 0;
#pragma unroll
    for (int box = 0; box < D::BOXES; ++box)
      boxes += box % D::GROUPS == group && (box < D::LATENTS || D::has(rank, box - D::LATENTS));
    ptx::copies_after_accesses();
    ptx::barrier_arrive_expect(arrived(count), boxes * D::BOX_BYTES);
#pragma unroll
    for (int box = 0; box < D::BOXES; ++box)
      if (box % D::GROUPS == group && (box < D::LATENTS || D::has(rank, box - D::LATENTS)))
        ptx::tensor_load(to + box * D::BOX_BYTES, entries, D::column(rank, box), row, arrived(count));
  }
  // This warp's entries of its step of block `count` one by one, entry i from from(i) on.
  template <class From>
  __device__ __forceinline__ void copy(int own, From from) const {
    constexpr int VECS = D::COLUMNS / 8;  // vectors of 16 bytes in a part of a latent
    const uint32_t to = at(count, own);
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
    if (ptx::elect_one()) ptx::barrier_arrive(arrived(count));
  }
  // Lets the L2 have what the block AHEAD tokens behind this one will ask for, if that serves all rows: by the first tile's
  // cluster.
  __device__ __forceinline__ void look_ahead(const Work& work) const {
    const int number = step + AHEAD / KEYS + threadIdx.x / 32 * (PAGE / KEYS);
    if (work.row > 0 || rank > 0 || threadIdx.x / 32 >= D::STEPS * KEYS / PAGE || number >= work.trunk) return;
    const int64_t page = pages_of<S>(turn)[number / (PAGE / KEYS)];
    if (ptx::elect_one())
      ptx::prefetch(pages + page * PAGE * U::W, 2 * U::W * KEYS * ::min(PAGE / KEYS, work.trunk - number));
  }

  // Requests the next block, of items up to number `last`. Whether there was one to request.
  __device__ __forceinline__ bool next(int last) {
    const Work* work = &work_of<S>(turn);
    if (work->steps >= 0 && step >= work->steps) {
      if (turn == last) return false;
      work = &work_of<S>(++turn);
      step = -D::STEPS;
    }
    if (work->steps < 0) return false;
    const int own = threadIdx.x / 32 % D::STEPS, number = step + own;
    if (step < 0 && KEYS * own < U::ROWS) {
      // Rows beyond the tile's repeat its last.
      const __nv_bfloat16* rows = q + (int64_t(work->stream.first) * U::H + work->row) * U::W;
      const int most = work->rows - 1;
      copy(own, [=](int entry) { return rows + ::min(KEYS * own + entry, most) * U::W; });
    } else if (step >= 0 && number < work->trunk) {
      copy_boxes(own, pages_of<S>(turn)[number / (PAGE / KEYS)] * PAGE + number % (PAGE / KEYS) * KEYS);
    } else if (step >= 0 && number < work->steps) {
      Step found;
      const int lines = gather<U, S>(*work, turn, number - work->trunk, found);
      copy(own, [=](int entry) {
        const int row = __shfl_sync(0xffffffffu, lines, entry);
        return row < 0 ? scratch + int64_t(~row) * U::W : pages + int64_t(row) * U::W;
      });
      if (threadIdx.x % 32 == 0 && threadIdx.x / 32 < D::STEPS) step_of(count, own) = found;
    } else if (ptx::elect_one()) {
      ptx::barrier_arrive(arrived(count));
    }
    ptx::copy_commit();
    if (step >= 0) look_ahead(*work);
    step += D::STEPS;
    ++count;
    return true;
  }
  // Requests what there is room for if the blocks before number `freed` are no longer needed.
  __device__ __forceinline__ void fill(int freed, int last) {
    while (count < freed + 2 && next(last)) {}
  }
  // Waits for the boxes of block `number`, and for what this thread has copied of it.
  __device__ __forceinline__ void wait(int number) const {
    ptx::barrier_wait(arrived(number), number / 2 & 1);
    if (count == number + 1)
      ptx::copy_wait<0>();
    else
      ptx::copy_wait<1>();
  }
  // What a gathered step of block `block` serves.
  __device__ __forceinline__ static Step& step_of(int block, int step) {
    return gathered_step<S>((block & 1) * D::STEPS + step);
  }
};

}  // namespace mla
}  // namespace kd
