// Prompt chunks: gathering a block of cache entries, and attention over the block once it is expanded.
#pragma once

#include "attn/flash.cuh"
#include "kd/vec.cuh"
#include "ptx/pdl.cuh"

namespace kd {

template <class U, class S>
__device__ __forceinline__ void latent_gather(const __nv_bfloat16* pages, const int32_t* table,
                                              const __nv_bfloat16* own, int committed, int first,
                                              __nv_bfloat16* entries, int X, int P, int M, int T) {
  ptx::grid_dependency_wait();
  ptx::grid_dependency_launch();
  for (int i = threadIdx.x; i < U::ROWS * U::VECS; i += U::THREADS) {
    const int row = blockIdx.x * U::ROWS + i / U::VECS, vec = i % U::VECS, token = first + row;
    if (row >= T) return;
    const bool paged = token < committed;
    const int page = paged && token / 64 < P ? ptx::load4(table + token / 64) : -1;
    const int64_t from = paged ? int64_t(page) * 64 + token % 64 : token - committed;
    const bool there = paged ? page >= 0 && page < X : from < M;
    const Bf16x8 nan = {{0x7fff7fffu, 0x7fff7fffu, 0x7fff7fffu, 0x7fff7fffu}};
    store8(entries, int64_t(row) * U::VECS + vec, there ? load8(paged ? pages : own, from * U::VECS + vec) : nan);
  }
}

namespace flash {

// VECS vectors of each of ROWS rows of global memory, `pitch` elements apart, to columns from `column` on of rows WIDTH wide
// in shared memory, by THREADS threads. Rows from `rows` on become zero and are not read.
template <int ROWS, int VECS, int WIDTH, int THREADS>
__device__ __forceinline__ void copy_rows(uint32_t to, int column, const __nv_bfloat16* from, int64_t pitch, int rows,
                                          int thread) {
  constexpr int STEP = THREADS / VECS;
  static_assert(THREADS % VECS == 0 && ROWS % STEP == 0 && STEP % 8 == 0, "whole rounds; vectors keep their place in a row");
  const int vec = thread % VECS, row = thread / VECS;
  const __nv_bfloat16* source = from + row * pitch + 8 * vec;
  to += Rows<WIDTH>::place(row, column / 8 + vec);
#pragma unroll 4
  for (int i = 0; i < ROWS; i += STEP, source += STEP * pitch)
    ptx::copy16_ahead(to + i * Rows<WIDTH>::BYTES, source, row + i < rows);
}

// The keys of one head in a block, of which the first `count` are looked at.
template <class U>
struct Block {
  const __nv_bfloat16 *kv, *entries;
  int64_t pitch;
  int count;

  // Both do nothing behind the end.
  __device__ __forceinline__ void load_keys(uint32_t to, int first) const {
    if (first >= count) return;
    copy_rows<U::NB, U::N / 8, U::KD, U::THREADS>(to, 0, kv + first * pitch, pitch, count - first, threadIdx.x);
    copy_rows<U::NB, U::R / 8, U::KD, U::THREADS>(to, U::N, entries + int64_t(first) * (U::C + U::R) + U::C, U::C + U::R,
                                                  count - first, threadIdx.x);
  }
  __device__ __forceinline__ void load_values(uint32_t to, int first) const {
    if (first >= count) return;
    copy_rows<U::NB, U::VD / 8, U::VD, U::THREADS>(to, 0, kv + first * pitch + U::N, pitch, count - first, threadIdx.x);
  }
};

// Two tiles of keys and values in shared memory; query rows lie over the end of the second until they are in registers.
template <class U>
struct Memory {
  static constexpr int KEYS = U::NB * Rows<U::KD>::BYTES, SLOT = KEYS + U::NB * Rows<U::VD>::BYTES;
  static constexpr int QUERIES = U::BYTES - U::ROWS * Rows<U::KD>::BYTES;
  static_assert(QUERIES >= SLOT, "query rows over the tile that is loaded with them");

  __device__ __forceinline__ static uint32_t keys(uint32_t shared, int tile) { return shared + tile % 2 * SLOT; }
  __device__ __forceinline__ static uint32_t values(uint32_t shared, int tile) { return keys(shared, tile) + KEYS; }
};

// All tiles of `block`, of which the first keys are there. Row r of the CTA sees `seen + r` keys. The products of one tile of
// keys run beside the softmax of the tile before. Every warp goes through every tile: one that shows it nothing changes
// no bit.
template <class U>
__device__ __forceinline__ void attend(const Place<U>& at, const Block<U>& block, const Queries<U>& queries, uint32_t shared,
                                       int seen, float factor, Running<U>& known) {
  using In = Memory<U>;
  const int count = block.count;
  block.load_values(In::values(shared, 0), 0);
  block.load_keys(In::keys(shared, 1), U::NB);
  ptx::copy_commit();
  Scores<U> score = {};
  multiply_keys<U>(at, queries, In::keys(shared, 0), score);
  int tile = 0;
#pragma unroll 1
  for (int first = 0; first < count; first += U::NB, ++tile) {
    ptx::copy_wait<0>();
    __syncthreads();  // these values and the next keys are there; these keys and the values before have been used
    block.load_values(In::values(shared, tile + 1), first + U::NB);
    block.load_keys(In::keys(shared, tile), first + 2 * U::NB);
    ptx::copy_commit();
    if (first + U::NB > ::min(count, seen + at.row))
      hide<U>(at, score, [=](int row) { return make_int2(0, ::min(count, seen + row) - first); });
    float base[U::MT][2];
    raise<U>(score, factor, base, known);
    Scores<U> next = {};
    multiply_keys<U>(at, queries, In::keys(shared, tile + 1), next);  // of what lies there, behind the last tile
    weigh<U>(score, factor, base, known);
    multiply_values<U>(at, score, In::values(shared, tile), known);
#pragma unroll
    for (int m = 0; m < U::MT; ++m)
#pragma unroll
      for (int n = 0; n < U::NB / 8; ++n)
#pragma unroll
        for (int c = 0; c < 4; ++c) score[m][n][c] = next[m][n][c];
  }
  ptx::copy_wait<0>();
}

// The rows of a tile from `row` on, of M rows of H heads: what they know, in memory and as a result. `part_ml` has top and part
// of the sum of each of the four threads that share a row.
template <class U>
struct State {
  const Place<U>& at;
  float *part_o, *part_ml;
  int row, head, M, H;

  template <class Visit>
  __device__ __forceinline__ void each(Visit visit) const {
#pragma unroll
    for (int m = 0; m < U::MT; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int mine = row + at.row + 16 * m + 8 * half + at.g;
        if (mine < M) visit(m, half, int64_t(mine) * H + head);
      }
  }
  __device__ __forceinline__ void load(Running<U>& known) const {
    each([&](int m, int half, int64_t to) {
      known.top[m][half] = part_ml[8 * to + 2 * at.t];
      known.sum[m][half] = part_ml[8 * to + 2 * at.t + 1];
#pragma unroll
      for (int n = 0; n < U::VD / 8; ++n) {
        const float2 from = *reinterpret_cast<const float2*>(part_o + to * U::VD + 8 * n + 2 * at.t);
        known.out[m][n][2 * half] = from.x, known.out[m][n][2 * half + 1] = from.y;
      }
    });
  }
  __device__ __forceinline__ void store(const Running<U>& known) const {
    each([&](int m, int half, int64_t to) {
      part_ml[8 * to + 2 * at.t] = known.top[m][half];
      part_ml[8 * to + 2 * at.t + 1] = known.sum[m][half];
#pragma unroll
      for (int n = 0; n < U::VD / 8; ++n)
        *reinterpret_cast<float2*>(part_o + to * U::VD + 8 * n + 2 * at.t) =
            make_float2(known.out[m][n][2 * half], known.out[m][n][2 * half + 1]);
    });
  }
  __device__ __forceinline__ void finish(Running<U>& known, __nv_bfloat16* y) const {
    join_lanes<U>(known);
    each([&](int m, int half, int64_t to) {
      const float share = 1.0f / known.sum[m][half];
#pragma unroll
      for (int n = 0; n < U::VD / 8; ++n)
        *reinterpret_cast<uint32_t*>(y + to * U::VD + 8 * n + 2 * at.t) =
            pack(known.out[m][n][2 * half] * share, known.out[m][n][2 * half + 1] * share);
    });
  }
};

}  // namespace flash

template <class U, class S>
__device__ __forceinline__ void prefill_attention(const __nv_bfloat16* q, const __nv_bfloat16* kv,
                                                  const __nv_bfloat16* entries, int ahead, float scale, int resumed,
                                                  int finished, float* part_o, float* part_ml, __nv_bfloat16* y, int M,
                                                  int H, int T) {
  using In = flash::Memory<U>;
  const flash::Place<U> at;
  const int tiles = (M + U::ROWS - 1) / U::ROWS;
  // Where every row sees the whole block, the CTAs of a head share its keys in L2; else those with most keys go first.
  const bool whole = ahead >= T - 1;
  const int index = blockIdx.x, head = whole ? index / tiles : index % H;
  const int row = (whole ? index % tiles : tiles - 1 - index / H) * U::ROWS, rows = ::min(U::ROWS, M - row);
  const int seen = ahead + row + 1;  // keys that the first row sees
  const int count = ::max(::min(T, seen + rows - 1), 0);
  const float factor = scale * 1.44269504f;  // log2 e
  const uint32_t shared = ptx::shared_address(S::tiles());
  const flash::Block<U> block = {kv + int64_t(head) * (U::N + U::VD), entries, int64_t(H) * (U::N + U::VD), count};

  ptx::grid_dependency_wait();
  ptx::grid_dependency_launch();
#pragma unroll
  for (int column = 0; column < U::KD; column += 64)
    flash::copy_rows<U::ROWS, 8, U::KD, U::THREADS>(shared + In::QUERIES, column,
                                                    q + (int64_t(row) * H + head) * U::KD + column, int64_t(H) * U::KD,
                                                    rows, threadIdx.x);
  block.load_keys(In::keys(shared, 0), 0);
  ptx::copy_commit();

  flash::Running<U> known;
  const flash::State<U> state = {at, part_o, part_ml, row, head, M, H};
  if (resumed) state.load(known);
  ptx::copy_wait<0>();
  __syncthreads();
  const flash::Queries<U> queries(at, shared + In::QUERIES + at.row * flash::Rows<U::KD>::BYTES);
  __syncthreads();  // tiles may take their place
  flash::attend<U>(at, block, queries, shared, seen, factor, known);
  if (finished)
    state.finish(known, y);
  else
    state.store(known);
}

}  // namespace kd
