// Tiles of tree_mla by warpgroups: sm_90a only. A CTA has a tile of 64 rows, or of 8, and blocks of 64 keys, which are a page.
//
// One warpgroup asks for keys and looks up items, one scores and weighs, two mix half of the columns each; one mixes all of a narrow
// tile (attn/mla_groups_narrow.cuh). So items follow one
// another without a barrier of the CTA: while the last block of one is mixed and its results leave, the next is scored.
//
// Steps of 16 keys, their quarters and bases are those of all other tiles: a quarter of a block's scores is one chain of products,
// and a base rises between steps. Where none rises in a block, which is the rule behind an item's first, its steps are one chain of
// products of weights and latents; else they are multiplied one by one, and sums scaled between.
#pragma once

#include "attn/mla_softmax.cuh"
#include "ptx/tensor.cuh"
#include "ptx/wgmma_low.cuh"

namespace kd {
namespace mla {

// What lies where in shared memory, in boxes of 64 rows and 64 columns whose vectors are permuted (see ptx/tensor.cuh): two
// blocks of keys, the queries, and a block's weights, a box.
template <class U, class S>
struct Boxes {
  static constexpr int STEPS = PAGE / KEYS;             // of a block
  static constexpr int BYTES = PAGE * 128;              // of a box
  static constexpr int LATENTS = U::C / 64, ALL = U::W / 64;
  static constexpr int PARTS = 4;                       // of a block, which are waited for and freed on their own
  static constexpr int MIXERS = U::GROUPS - 2, CHUNKS = PARTS / MIXERS;
  static constexpr int QUERIES = U::QUERIES, TILE = U::ROWS * 128;  // items whose queries are kept; bytes of a box of them
  static_assert(U::C == 512 && U::R == 64 && S::RING_COUNT == 2 * ALL * BYTES + (QUERIES * ALL + 1) * TILE, "boxes");

  __device__ __forceinline__ static uint8_t* block(int slot) { return S::ring() + slot * (ALL * BYTES); }
  __device__ __forceinline__ static uint8_t* queries(int turn) { return block(2) + turn % QUERIES * (ALL * TILE); }
  __device__ __forceinline__ static uint8_t* weights() { return block(2) + QUERIES * (ALL * TILE); }
  // Vector `vec` of row `row` of a box, in bytes.
  __device__ __forceinline__ static uint32_t vector(int row, int vec) { return row * 128 + (vec ^ row % 8) * 16; }

  // Barriers: part `part` of a block has arrived, is free; queries have arrived, are free; weights are there, are free.
  __device__ __forceinline__ static uint64_t* full(int slot, int part) { return S::arrived() + slot * PARTS + part; }
  __device__ __forceinline__ static uint64_t* empty(int slot, int part) { return S::arrived() + (2 + slot) * PARTS + part; }
  __device__ __forceinline__ static uint64_t* asked(int turn) { return S::ready() + turn % QUERIES; }
  __device__ __forceinline__ static uint64_t* scored(int turn) { return S::ready() + QUERIES + turn % QUERIES; }
  __device__ __forceinline__ static uint64_t* weighed() { return S::ready() + 2 * QUERIES; }
  __device__ __forceinline__ static uint64_t* mixed() { return S::ready() + 2 * QUERIES + 1; }
  // Of the barriers of item `turn`.
  __device__ __forceinline__ static uint32_t parity(int turn) { return turn / QUERIES & 1; }

  // The same in all of a warp, and known to be, so that operands of products are worked out once for it.
  __device__ __forceinline__ static int same(int value) { return __shfl_sync(0xffffffffu, value, 0); }

  // Makes the barriers, by one thread.
  __device__ __forceinline__ static void prepare() {
    for (int i = 0; i < 2 * PARTS; ++i) {
      ptx::barrier_init(S::arrived() + i, STEPS);
      ptx::barrier_init(S::arrived() + 2 * PARTS + i, ptx::warp_arrivals(4));
    }
    for (int i = 0; i < QUERIES; ++i) ptx::barrier_init(asked(i), 1), ptx::barrier_init(scored(i), ptx::warp_arrivals(4));
    ptx::barrier_init(weighed(), ptx::warp_arrivals(4));
    ptx::barrier_init(mixed(), ptx::warp_arrivals(4 * MIXERS));
    ptx::barriers_ready();
  }

  // What step `step` of the block in `slot` serves, if that was gathered.
  __device__ __forceinline__ static Step& step_of(int slot, int step) {
    static_assert(2 * STEPS * sizeof(Step) <= S::STEP_COUNT * sizeof(int32_t), "step");
    return reinterpret_cast<Step*>(S::step())[slot * STEPS + step];
  }
};

// What is mixed next: steps of a block, the item, whether the block is its first or last. No steps: nothing is left.
struct alignas(16) Mix {
  int steps, turn, first, last;
};

// Asks for queries and keys, and looks up items: four warps. The first asks for boxes, the second looks up, the third asks for
// queries; each takes a step of a block that is gathered.
template <class U, class S>
struct Supply {
  using B = Boxes<U, S>;

  const ptx::TensorMap &entries, &queries;
  const __nv_bfloat16 *pages, *scratch;

  // A page, as block `block` of the CTA. By one warp.
  __device__ __forceinline__ void ask(int block, int page) const {
    const int slot = block & 1, parity = block / 2 & 1 ^ 1;
#pragma unroll 1
    for (int part = 0; part < B::PARTS; ++part) {
      uint64_t* full = B::full(slot, part);
      ptx::barrier_wait(B::empty(slot, part), parity);
      if (!ptx::elect_one()) continue;
      ptx::barrier_arrive_expect(full, (part == 0 ? 3 : 2) * B::BYTES);
      for (int i = 1; i < B::STEPS; ++i) ptx::barrier_arrive(full);
      for (int i = 0; i < 2; ++i)
        ptx::tensor_load(B::block(slot) + (2 * part + i) * B::BYTES, entries, 64 * (2 * part + i), page * PAGE, full);
      if (part == 0)
        ptx::tensor_load(B::block(slot) + B::LATENTS * B::BYTES, entries, 64 * B::LATENTS, page * PAGE, full);
    }
  }
  // An item's queries, and whatever rows are behind the tile's last; nothing but word that no items are left. By one thread.
  __device__ __forceinline__ void ask_queries(const Work& work, int turn) const {
    if (work.steps < 0) return ptx::barrier_arrive(B::asked(turn));
    ptx::barrier_arrive_expect(B::asked(turn), B::ALL * B::TILE);
    const int row = work.stream.first * U::H + work.row;
    for (int i = 0; i < B::ALL; ++i) ptx::tensor_load(B::queries(turn) + i * B::TILE, queries, 64 * i, row, B::asked(turn));
  }

  // Where this lane has vector lane % 8 of row `row` + lane / 8 of a step's first box, of warp `warp`.
  __device__ __forceinline__ static uint8_t* vector(uint8_t* block, int warp, int row) {
    const int lane = threadIdx.x % 32;
    return block + B::vector(KEYS * warp + row + lane / 8, lane % 8);
  }
  // Asks for this warp's step of block `block`, which is step `number` of the item, if there is one.
  __device__ __forceinline__ void gather_step(const Work& work, int turn, int block, int number) const {
    const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32, slot = block & 1;
#pragma unroll 1
    for (int part = 0; part < B::PARTS; ++part) ptx::barrier_wait(B::empty(slot, part), block / 2 & 1 ^ 1);
    if (number < work.steps) {
      Step step = {0, U::ROWS, KEYS, 0};
      int place;
      if (number < work.trunk)
        place = pages_of<S>(turn)[number / B::STEPS] * PAGE + number % B::STEPS * KEYS + lane % KEYS;
      else
        place = gather<U, S>(work, turn, number - work.trunk, step);
      if (lane == 0) B::step_of(slot, warp) = step;
#pragma unroll 1
      for (int row = 0; row < KEYS; row += 4) {
        const int own = __shfl_sync(0xffffffffu, place, row + lane / 8);
        const __nv_bfloat16* from = (own < 0 ? scratch + int64_t(~own) * U::W : pages + int64_t(own) * U::W) + lane % 8 * 8;
        const uint32_t to = ptx::shared_address(vector(B::block(slot), warp, row));
#pragma unroll
        for (int i = 0; i < B::ALL; ++i) ptx::copy16(to + i * B::BYTES, from + 64 * i);
      }
    }
    ptx::copy_commit();
  }
  // Rows of a node's own step are multiplied for all rows of the tile, with weight zero where they do not see it, and zero times NaN is
  // NaN. So of an entry that is not finite only the key stays, as NaN: rows that see it have NaN scores, others notice nothing. Each
  // lane looks at what it has copied.
  __device__ __forceinline__ static void contain(uint8_t* block, int warp) {
#pragma unroll 1
    for (int row = 0; row < KEYS; row += 4) {
      uint8_t* own = vector(block, warp, row);
      uint32_t most = 0;
#pragma unroll 3
      for (int i = 0; i < B::ALL; ++i) {
        const uint4 four = *reinterpret_cast<const uint4*>(own + i * B::BYTES);
        const uint32_t words[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
        for (int j = 0; j < 4; ++j) most = __vmaxu2(most, words[j] & 0x7fff7fffu);
      }
#pragma unroll
      for (int by = 1; by < 8; by *= 2) most = __vmaxu2(most, __shfl_xor_sync(0xffffffffu, most, by));
      if ((most & 0xffffu) < 0x7f80u && most >> 16 < 0x7f80u) continue;
#pragma unroll 1
      for (int i = 0; i < B::ALL; ++i) {
        const uint32_t word = i < B::LATENTS ? 0u : 0x7fc07fc0u;
        *reinterpret_cast<uint4*>(own + i * B::BYTES) = make_uint4(word, word, word, word);
      }
    }
  }
  // What this warp asked for of block `block` is there, and of earlier blocks; NEWER: of all but the one after it.
  template <int NEWER>
  __device__ __forceinline__ void finish_step(const Work& work, int block, int number) const {
    const int slot = block & 1;
    ptx::copy_wait<NEWER>();
    if (number < work.steps) {
      __syncwarp();
      if (U::ROWS > U::H && number >= work.trunk) contain(B::block(slot), threadIdx.x / 32 % 4);
      ptx::copies_after_accesses();
      __syncwarp();
    }
    if (threadIdx.x % 32 == 0)
      for (int part = 0; part < B::PARTS; ++part) ptx::barrier_arrive(B::full(slot, part));
  }

  template <class Next>
  __device__ __forceinline__ void run(Next set_up) const {
    const int warp = threadIdx.x / 32 % 4;
    if (warp == 1) set_up(0);
    ptx::named_barrier<128>(1);
#pragma unroll 1
    for (int turn = 0, block = 0;; ++turn) {
      const Work& work = work_of<S>(turn);
      const int steps = work.steps;
      if (warp == 2) {
        ptx::barrier_wait(B::scored(turn), B::parity(turn) ^ 1);
        if (ptx::elect_one()) ask_queries(work, turn);
      }
      if (steps < 0) break;
      if (warp == 1) set_up(turn + 1);
      const int boxes = work.trunk / B::STEPS, blocks = (steps + B::STEPS - 1) / B::STEPS;
      if (warp == 0) {
#pragma unroll 1
        for (int i = 0; i < boxes; ++i) ask(block + i, pages_of<S>(turn)[i]);
      }
      if (boxes < blocks) {
        // Boxes have been asked for: no phase of a barrier is taken for one before it.
        ptx::named_barrier<128>(1);
        gather_step(work, turn, block + boxes, B::STEPS * boxes + warp);
#pragma unroll 1
        for (int i = boxes; i < blocks; ++i) {
          // The next one's copies begin while this one's are looked at.
          if (i + 1 < blocks) gather_step(work, turn, block + i + 1, B::STEPS * (i + 1) + warp);
          else ptx::copy_commit();
          finish_step<1>(work, block + i, B::STEPS * i + warp);
        }
      }
      block += blocks;
      // The next item is known.
      ptx::named_barrier<128>(1);
    }
  }
};

// Scores and weighs: a warp has 16 rows, a lane those of `mma`, g and g + 8.
template <class U, class S>
struct Scorer {
  using B = Boxes<U, S>;
  using Scores = float[PAGE / 8][4];

  Softmax row[2];

  // A quarter of a block's scores.
  __device__ __forceinline__ static void quarter(Scores& s, int slot, int number) {
    const uint32_t queries = ptx::low_of_rows(ptx::shared_address(B::queries(0)));
    const uint32_t keys = ptx::low_of_rows(ptx::shared_address(B::block(slot)));
#pragma unroll
    for (int k = 0; k < Quarter<U>::STEPS; ++k) {
      // Product k lies 16 columns of 128 bytes' boxes further for each that is before it.
      const int column = Quarter<U>::at(number, k) / 32, at = column / 4 * (B::BYTES / 16) + column % 4 * 2;
      if (k == 0)
        ptx::wgmma_set_low(s, queries + at, keys + at);
      else
        ptx::wgmma_add_low(s, queries + at, keys + at);
    }
    ptx::wgmma_commit();
  }
  __device__ __forceinline__ static void add(Scores& s, const Scores& other) {
#pragma unroll
    for (int n = 0; n < PAGE / 8; ++n)
#pragma unroll
      for (int c = 0; c < 4; ++c) s[n][c] += other[n][c];
  }
  // All of them.
  __device__ __forceinline__ static void score(Scores& s, int block) {
    const int slot = block & 1, parity = block / 2 & 1;
    Scores second, third;
    ptx::barrier_wait(B::full(slot, 0), parity);
    ptx::wgmma_fence();
    quarter(s, slot, 0);
    ptx::barrier_wait(B::full(slot, 1), parity);
    quarter(second, slot, 1);
    ptx::barrier_wait(B::full(slot, 2), parity);
    quarter(third, slot, 2);
    ptx::wgmma_wait<1>();
    ptx::pin(s), ptx::pin(second);
    add(s, second);
    ptx::barrier_wait(B::full(slot, 3), parity);
    ptx::pin(second);
    ptx::wgmma_fence();
    quarter(second, slot, 3);
    ptx::wgmma_wait<0>();
    ptx::pin(second), ptx::pin(third);
    add(third, second);
    add(s, third);
  }

  // A row's scores of step k.
  __device__ __forceinline__ static void take(float (&to)[4], const Scores& s, int k, int r) {
    to[0] = s[2 * k][2 * r], to[1] = s[2 * k][2 * r + 1], to[2] = s[2 * k + 1][2 * r], to[3] = s[2 * k + 1][2 * r + 1];
  }

  __device__ __forceinline__ void run(float* part_ml, int Z) {
#pragma unroll 1
    for (int turn = 0, block = 0;; ++turn) {
      ptx::barrier_wait(B::asked(turn), B::parity(turn));
      const Work& work = work_of<S>(turn);
      const int steps = B::same(work.steps);
      if (steps < 0) {
        ptx::barrier_wait(B::mixed(), block & 1 ^ 1);
        if (threadIdx.x % 128 == 0) *reinterpret_cast<Mix*>(S::base()) = Mix{0, 0, 0, 0};
        ptx::barrier_arrive_warp(B::weighed(), threadIdx.x % 32);
        return;
      }
      row[0].clear(), row[1].clear();
#pragma unroll 1
      for (int first = 0; first < steps; first += B::STEPS, ++block) {
        Scores s;
        score(s, block);
        // Worked out anew: there are no registers for it while products run.
        const uint32_t thread = ptx::opaque(threadIdx.x), lane = thread % 32, warp = thread / 32 % 4, t = lane % 4;
        const int own = 16 * warp + lane / 4;
        const float factor = work.factor;
        const int trunk = work.trunk;
        const bool last = first + B::STEPS >= steps;
        if (last) ptx::barrier_arrive_warp(B::scored(turn), lane);
        const bool whole = first + B::STEPS <= trunk;
        uint2 weights[B::STEPS][2];
        float keep[B::STEPS][2];
        uint32_t rises = 0;
        bool up = !whole;
        // Rounded once, wherever they are used: a product that became part of a sum would have other bits.
#pragma unroll
        for (int n = 0; n < PAGE / 8; ++n)
#pragma unroll
          for (int c = 0; c < 4; ++c) s[n][c] = __fmul_rn(s[n][c], factor);
        if (whole) {
#pragma unroll
          for (int r = 0; r < 2; ++r) {
            float top = -INFINITY;
#pragma unroll
            for (int n = 0; n < PAGE / 8; ++n) top = fmaxf(top, fmaxf(s[n][2 * r], s[n][2 * r + 1]));
            up |= top > row[r].base + SLACK;
          }
        }
        if (!__any_sync(0xffffffffu, up)) {
#pragma unroll
          for (int k = 0; k < B::STEPS; ++k)
#pragma unroll
            for (int r = 0; r < 2; ++r) {
              float one[4];
              take(one, s, k, r);
              weights[k][r] = row[r].template take<true>(one, true, 1.0f);
            }
        } else {
#pragma unroll
          for (int k = 0; k < B::STEPS; ++k) {
            Step step = {0, U::ROWS, KEYS, 0};
            if (!whole) step = first + k < steps ? B::step_of(block & 1, k) : Step{0, 0, 0, 0};
#pragma unroll
            for (int r = 0; r < 2; ++r) {
              float one[4];
              take(one, s, k, r);
              const int mine = own + 8 * r;
              bool changed;
              weights[k][r] = row[r].template weigh<false>(one, 1.0f, step, mine >= step.low && mine < step.high, keep[k][r], changed);
              rises |= uint32_t(changed) << k;
            }
          }
        }
        // The block before is mixed.
        ptx::barrier_wait(B::mixed(), block & 1 ^ 1);
#pragma unroll
        for (int k = 0; k < B::STEPS; ++k)
#pragma unroll
          for (int r = 0; r < 2; ++r) {
            const int mine = own + 8 * r;
            *reinterpret_cast<uint32_t*>(B::weights() + B::vector(mine, 2 * k) + 4 * t) = weights[k][r].x;
            *reinterpret_cast<uint32_t*>(B::weights() + B::vector(mine, 2 * k + 1) + 4 * t) = weights[k][r].y;
            if (rises >> k & 1 && t == 0) S::keep()[k * U::ROWS + mine] = keep[k][r];
          }
        if (lane == 0) S::changed()[warp] = rises;
        if (thread % 128 == 0)
          *reinterpret_cast<Mix*>(S::base()) = Mix{::min(steps - first, B::STEPS), turn, first == 0, last};
        ptx::copies_after_accesses();
        ptx::barrier_arrive_warp(B::weighed(), lane);
      }
      const int lane = threadIdx.x % 32, t = lane % 4, own = threadIdx.x / 32 % 4 * 16 + lane / 4;
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float all = row[r].all();
        const int mine = own + 8 * r;
        if (t == 0 && mine < work.rows && mine < Z - work.part)
          *reinterpret_cast<float2*>(part_ml + (work.part + mine) * 2) = float2{row[r].base, all};
      }
    }
  }
};

// Mixes half of the columns, in chunks of 128.
template <class U, class S>
struct Mixer {
  using B = Boxes<U, S>;

  int mixer;  // which half
  float sum[B::CHUNKS][16][4];

  __device__ __forceinline__ void multiply(int chunk, uint32_t weights, uint32_t latents, int k) {
    ptx::wgmma_add_low(sum[chunk], weights + 2 * k, latents + chunk * (2 * B::BYTES / 16) + k * (KEYS * 128 / 16));
  }
  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < B::CHUNKS; ++i)
#pragma unroll
      for (int n = 0; n < 16; ++n) sum[i][n][0] = sum[i][n][1] = sum[i][n][2] = sum[i][n][3] = 0.0f;
  }
  __device__ __forceinline__ void run(float* part_o, int Z) {
#pragma unroll 1
    for (int block = 0;; ++block) {
      ptx::barrier_wait(B::weighed(), block & 1);
      Mix mix = *reinterpret_cast<const Mix*>(S::base());
      mix.steps = B::same(mix.steps);
      if (mix.steps == 0) return;
      const uint32_t flags = B::same(*reinterpret_cast<const uint32_t*>(S::changed())), lane = ptx::opaque(threadIdx.x) % 32;
      const int slot = block & 1;
      if (mix.first) clear();
      const uint32_t weights = ptx::low_of_rows(ptx::shared_address(B::weights()));
      const uint32_t latents = 
          ptx::low_of_columns(ptx::shared_address(B::block(slot)) + mixer * (B::LATENTS / B::MIXERS * B::BYTES), B::BYTES);
      // Nothing is there to be scaled at an item's first step.
      const uint32_t rises = B::same(mix.first) ? flags & 0xfefefefeu : flags;
#pragma unroll 1
      for (int first = 0; first < mix.steps;) {
        if (rises & 0x01010101u << first) scale(rises, first);
        int end = first + 1;
        while (end < mix.steps && (rises & 0x01010101u << end) == 0) ++end;
        ptx::pin(sum[0]), ptx::pin(sum[1]);
        ptx::wgmma_fence();
#pragma unroll
        for (int i = 0; i < B::CHUNKS; ++i) {
#pragma unroll
          for (int k = 0; k < B::STEPS; ++k)
            if (k >= first && k < end) multiply(i, weights, latents, k);
          ptx::wgmma_commit();
        }
        ptx::wgmma_wait<0>();
        ptx::pin(sum[0]), ptx::pin(sum[1]);
        first = end;
      }
      // Read before the slots are given back: behind that the item's own place may be taken by one that is looked up.
      int rows = 0;
      int64_t part = 0;
      if (mix.last) rows = work_of<S>(mix.turn).rows, part = work_of<S>(mix.turn).part;
      ptx::barrier_arrive_warp(B::empty(slot, B::CHUNKS * mixer), lane);
      ptx::barrier_arrive_warp(B::empty(slot, B::CHUNKS * mixer + 1), lane);
      ptx::barrier_arrive_warp(B::mixed(), lane);
      if (mix.last) store(rows, part, part_o, Z);
    }
  }
  // Scales this warp's sums if one of its bases rose at step k.
  __device__ __forceinline__ void scale(uint32_t flags, int k) {
    const uint32_t thread = ptx::opaque(threadIdx.x), warp = thread / 32 % 4;
    if ((flags >> 8 * warp + k & 1) == 0) return;
    const float* keep = S::keep() + k * U::ROWS + warp * 16 + thread % 32 / 4;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float by = keep[8 * r];
#pragma unroll
      for (int i = 0; i < B::CHUNKS; ++i)
#pragma unroll
        for (int n = 0; n < 16; ++n) sum[i][n][2 * r] *= by, sum[i][n][2 * r + 1] *= by;
    }
  }
  // Partial results: as those of other wide tiles.
  __device__ __forceinline__ void store(int rows, int64_t part, float* part_o, int Z) const {
    const uint32_t thread = ptx::opaque(threadIdx.x), lane = thread % 32, warp = thread / 32 % 4, g = lane / 4, t = lane % 4;
    const int64_t room = ::min(int64_t(rows), Z - part);
    float* to = part_o + (part + 16 * warp + g) * U::C + mixer * (U::C / B::MIXERS) + 2 * t;
    const bool odd = t % 2 != 0;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const bool here = 16 * warp + 8 * r + g < room;
#pragma unroll
      for (int i = 0; i < B::CHUNKS; ++i)
#pragma unroll
        for (int n = 0; n < 16; n += 2) {
          // Even lanes get four columns of tile n, odd ones of the next.
          const float *even = sum[i][n] + 2 * r, *next = sum[i][n + 1] + 2 * r;
          const float2 give = odd ? float2{even[0], even[1]} : float2{next[0], next[1]};
          const float2 kept = odd ? float2{next[0], next[1]} : float2{even[0], even[1]};
          const float2 got = {__shfl_xor_sync(0xffffffffu, give.x, 1), __shfl_xor_sync(0xffffffffu, give.y, 1)};
          if (here)
            *reinterpret_cast<float4*>(to + 8 * r * U::C + 128 * i + 8 * n + (odd ? 6 : 0)) =
                odd ? float4{got.x, got.y, kept.x, kept.y} : float4{kept.x, kept.y, got.x, got.y};
        }
    }
  }
};

}  // namespace mla
}  // namespace kd
