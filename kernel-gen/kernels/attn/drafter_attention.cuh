// Grouped-query attention of a drafted block: the query heads of one key head and all rows of the block are the rows of one
// product, so that each key is read from memory once.
#pragma once

#include "attn/flash.cuh"
#include "kd/reduce.cuh"
#include "kd/vec.cuh"
#include "ptx/bulk.cuh"
#include "ptx/pdl.cuh"

namespace kd {
namespace drafter {

// How the keys of a stream with `start` committed tokens are cut: `count` ranges of `length` keys from `begin` on, the last
// one with the block behind it. FEW ranges until they are ENOUGH tokens long, so that starting and merging cost little, then
// more of them, up to SPLITS. Keys before `oldest` are seen by no row.
template <class U>
struct Cut {
  int oldest, begin, end, length, count;

  __device__ __forceinline__ Cut(int start, int window) {
    oldest = window > 0 ? ::max(0, start + 1 - window) : 0;
    begin = oldest / U::LEN * U::LEN;
    end = start + U::BLK;
    const int span = start - begin, units = (span + U::LEN - 1) / U::LEN;
    const int few = ::min((units + U::FEW - 1) / U::FEW, U::ENOUGH / U::LEN), most = (units + U::SPLITS - 1) / U::SPLITS;
    length = ::max(1, ::max(few, most)) * U::LEN;
    count = ::max(1, (span + length - 1) / length);
  }
};

// The keys and values of one stream and key head.
template <class U>
struct Source {
  static constexpr int PITCH = 2 * U::N * U::D;  // elements of a token's entry

  const __nv_bfloat16 *cache, *own;  // at this head's key in the first entry
  const int32_t* table;
  int start, oldest, end, pages, reach;  // `reach`: entries of the page table

  // The page of the NB keys from `first` on, a multiple of NB; -1 where none of them is committed.
  __device__ __forceinline__ int page(int first) const {
    if (first >= start) return -1;
    return first / 64 < reach ? ptx::load4(table + first / 64) : -2;
  }
  // Whether a page that `page` gave can be read.
  __device__ __forceinline__ bool valid(int page) const { return page == -1 || (page >= 0 && page < pages); }

  // Keys, then values, of NB tokens. Those that no row sees become zero.
  __device__ __forceinline__ void load(uint32_t to, int first, int page, int thread) const {
    constexpr int VECS = U::D / 8, STEP = 32 * U::WM / VECS;
    static_assert(32 * U::WM % VECS == 0 && U::NB % STEP == 0, "whole rounds, whole rows");
    const int vec = thread % VECS, row = thread / VECS;
    const __nv_bfloat16* paged = cache + (int64_t(page) * 64 + first % 64) * PITCH;
    const __nv_bfloat16* drafted = own + (int64_t(first) - start) * PITCH;
#pragma unroll
    for (int i = row; i < U::NB; i += STEP) {
      const bool committed = first + i < start;
      const bool keep = first + i >= oldest && first + i < end && (!committed || page >= 0);
      const __nv_bfloat16* from = (committed ? paged : drafted) + i * PITCH + 8 * vec;
      ptx::copy16_ahead(to + flash::Rows<U::D>::place(i, vec), keep ? from : own, keep);
      ptx::copy16_ahead(to + flash::Rows<U::D>::place(U::NB + i, vec), keep ? from + U::N * U::D : own, keep);
    }
  }
};

}  // namespace drafter

template <class U, class S_>
__device__ __forceinline__ void drafter_attention(const __nv_bfloat16* q, const __nv_bfloat16* own,
                                                  const __nv_bfloat16* cache, const int32_t* table,
                                                  const int32_t* starts, int window, int causal, float scale,
                                                  float* part_o, float* part_ml, __nv_bfloat16* y, int S, int X, int P) {
  using Tile = flash::Rows<U::D>;
  constexpr int HEADS = U::N * U::G, ROWS = U::BLK * U::G;
  const flash::Place<U> at;
  const int split = blockIdx.x, head = blockIdx.y, stream = blockIdx.z;
  const uint32_t shared = ptx::shared_address(S_::tiles());
  const uint32_t ring = shared + U::ROWS * Tile::BYTES + at.group * U::ST * U::SLOT;
  const float factor = scale * 1.44269504f;  // log2 e

  ptx::grid_dependency_launch();
  ptx::grid_dependency_wait();
  const int start = ptx::load4(starts + stream);
  if (start < 0) return;
  const drafter::Cut<U> cut(start, window);
  if (split >= cut.count) return;
  const int from = cut.begin + split * cut.length, to = split + 1 == cut.count ? cut.end : from + cut.length;
  const drafter::Source<U> source = {cache + head * U::D,
                                     own + (int64_t(stream) * U::BLK * 2 * U::N + head) * U::D,
                                     table + int64_t(stream) * P,
                                     start,
                                     cut.oldest,
                                     cut.end,
                                     X,
                                     P};

  // Row r is query head r % G of row r / G of the block.
  const auto place = [&](int row) { return ((int64_t(stream) * U::BLK + row / U::G) * HEADS + head * U::G + row % U::G) * U::D; };
  for (int i = threadIdx.x; i < U::ROWS * U::D / 8; i += U::THREADS) {
    const int row = i / (U::D / 8), vec = i % (U::D / 8);
    ptx::copy16_ahead(shared + Tile::place(row, vec), q + (row < ROWS ? place(row) : 0) + 8 * vec, row < ROWS);
  }
  const int begin = from + at.group * U::NB;
  bool broken = false;
  int next = begin, page = next < to ? source.page(next) : -1;
  const auto load = [&](int slot) {
    if (next < to) {
      broken |= !source.valid(page);
      source.load(ring + slot * U::SLOT, next, source.valid(page) ? page : -1, at.thread());
      next += U::TILE;
      if (next < to) page = source.page(next);
    }
    ptx::copy_commit();
  };
#pragma unroll
  for (int slot = 0; slot < U::ST - 1; ++slot) load(slot);
  ptx::copy_wait<U::ST - 2>();
  __syncthreads();  // queries are there

  flash::Running<U> known;
  const flash::Queries<U> queries(at, shared + at.row * Tile::BYTES);
  const int first_row = at.row / U::G, last_row = ::min(ROWS - 1, at.row + 16 * U::MT - 1) / U::G;  // of the block
  int slot = 0;
#pragma unroll 1
  for (int first = begin; first < to; first += U::TILE) {
    ptx::copy_wait<U::ST - 2>();
    at.sync_group();  // this tile is there, the one before has been used
    load((slot + U::ST - 1) % U::ST);
    const uint32_t keys = ring + slot * U::SLOT;
    flash::Scores<U> score = {};
    flash::multiply_keys<U>(at, queries, keys, score);
    const int newest = causal ? start + first_row + 1 : cut.end;
    if (first + U::NB > newest || (window > 0 && first < start + last_row + 1 - window))
      flash::hide<U>(at, score, [=](int row) {
        const int position = start + row / U::G;
        return make_int2(window > 0 ? position + 1 - window - first : 0, (causal ? position + 1 : cut.end) - first);
      });
    float base[U::MT][2];
    flash::raise<U>(score, factor, base, known);
    flash::weigh<U>(score, factor, base, known);
    flash::multiply_values<U>(at, score, keys + U::NB * Tile::BYTES, known);
    slot = (slot + 1) % U::ST;
  }
  // Racecheck loses count where groups pass their barriers a different number of times; in its build the others of a round catch up.
  if (ptx::EVERY_LANE_ARRIVES && (to - begin + U::TILE - 1) / U::TILE < (to - from + U::TILE - 1) / U::TILE) at.sync_group();
  ptx::copy_wait<0>();
  if (broken)
#pragma unroll
    for (int m = 0; m < U::MT; ++m) known.sum[m][0] = known.sum[m][1] = __int_as_float(0x7fffffff);
  flash::join_lanes<U>(known);
  flash::join_groups<U>(at, reinterpret_cast<float*>(S_::tiles()), factor, known);
  if (at.group != 0) return;
#pragma unroll
  for (int m = 0; m < U::MT; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = at.row + 16 * m + 8 * half + at.g;
      if (row >= ROWS) continue;
      const int64_t part = ((int64_t(stream) * U::N + head) * U::SPLITS + split) * ROWS + row;
      const float share = 1.0f / known.sum[m][half];
      if (cut.count > 1 && at.t == 0)
        part_ml[2 * part] = known.top[m][half] * factor, part_ml[2 * part + 1] = known.sum[m][half];
#pragma unroll
      for (int n = 0; n < U::D / 8; ++n) {
        const float a = known.out[m][n][2 * half], b = known.out[m][n][2 * half + 1];
        const int column = 8 * n + 2 * at.t;
        if (cut.count > 1)
          *reinterpret_cast<float2*>(part_o + part * U::D + column) = make_float2(a, b);
        else
          *reinterpret_cast<uint32_t*>(y + place(row) + column) = flash::pack(a * share, b * share);
      }
    }
}

template <class U, class S_>
__device__ __forceinline__ void drafter_merge(const float* part_o, const float* part_ml, const int32_t* starts, int window,
                                              __nv_bfloat16* y, int S) {
  constexpr int EACH = U::D / 32, ROWS = U::BLK * U::G;
  const int row = blockIdx.x, head = blockIdx.y, stream = blockIdx.z, thread = threadIdx.x, warp = thread / 32;
  ptx::grid_dependency_launch();
  ptx::grid_dependency_wait();
  const int start = ptx::load4(starts + stream);
  if (start < 0) return;
  const drafter::Cut<U> cut(start, window);
  if (cut.count == 1) return;
  const int64_t first = (int64_t(stream) * U::N + head) * U::SPLITS * ROWS + row;  // and then every ROWS-th
  const float* ml = part_ml + 2 * (first + int64_t(thread) * ROWS);
  const float top = thread < cut.count ? ptx::load4f(ml) : flash::NONE;
  const float most = block_max<U::THREADS>(top, S_::partial());
  const float weight = most == flash::NONE ? 0.0f : ptx::exp2_fast(top - most);
  const float sum = block_sum<U::THREADS>(thread < cut.count ? weight * ptx::load4f(ml + 1) : 0.0f, S_::partial());
  if (thread < cut.count) S_::weights()[thread] = weight;
  __syncthreads();
  float mixed[EACH] = {};
#pragma unroll 4
  for (int split = warp; split < cut.count; split += U::WARPS) {
    const float* from = part_o + (first + int64_t(split) * ROWS) * U::D + thread % 32;
#pragma unroll
    for (int i = 0; i < EACH; ++i) mixed[i] = fmaf(S_::weights()[split], ptx::load4f(from + 32 * i), mixed[i]);
  }
#pragma unroll
  for (int i = 0; i < EACH; ++i) S_::sums()[warp * U::D + thread % 32 + 32 * i] = mixed[i];
  __syncthreads();
  if (thread >= U::D) return;
  float total = S_::sums()[thread];
#pragma unroll
  for (int other = 1; other < U::WARPS; ++other) total += S_::sums()[other * U::D + thread];
  const int64_t to = ((int64_t(stream) * U::BLK + row / U::G) * U::N * U::G + head * U::G + row % U::G) * U::D;
  y[to + thread] = __float2bfloat16(total / sum);
}

}  // namespace kd
