// The K best tokens of a row from what lm_head.cuh leaves: they lie in the tiles whose maximum reaches what K maxima reach. Such a
// floor need not be the best one: a few tiles too many are read sooner than the K best are told apart.
#pragma once

#include "dense/lm_head.cuh"
#include "kd/select.cuh"
#include "ptx/memory.cuh"
#include "ptx/pdl.cuh"

namespace kd {
namespace head {

constexpr uint32_t ALL_LANES = 0xffffffffu;

// What a thread knows of the row: OWN tiles, of which HOLDERS threads have all.
template <class U>
struct Tiles {
  float4 own[U::OWN];
  uint32_t high[U::OWN];

  // Neighbouring tiles go to different warps, so that each has its share of few tiles too.
  __device__ __forceinline__ static int tile(int i) {
    return threadIdx.x % 32 * (U::HOLDERS / 32) + threadIdx.x / 32 + i * U::HOLDERS;
  }
  __device__ __forceinline__ void load(const float* tiles) {
#pragma unroll
    for (int i = 0; i < U::OWN; ++i) {
      uint4 v = make_uint4(0xff800000u, 0, 0, 0);  // -inf
      if (threadIdx.x < U::HOLDERS && tile(i) < U::TILES) v = ptx::load16(tiles + tile(i) * 4);
      own[i] = make_float4(__uint_as_float(v.x), __uint_as_float(v.y), __uint_as_float(v.z), __uint_as_float(v.w));
      high[i] = ordered(own[i].x);
    }
  }
};

// What at least K tiles' maxima reach; 1 if there may be fewer. The (K / warps)-th best lead of each warp of holders is tried: all
// reach the least of these, and the greatest that K reach is taken. Leaves maximum and flag of each warp.
template <class U, class S>
__device__ __forceinline__ uint32_t tiles_floor(const Tiles<U>& tiles) {
  constexpr int WARPS = U::HOLDERS / 32;
  static_assert(WARPS == 8 && U::K % WARPS == 0, "two vectors of floors");
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (threadIdx.x < WARPS) S::above()[threadIdx.x] = 0;
  if (threadIdx.x < 3) S::count()[threadIdx.x] = 0;
  if (threadIdx.x < U::HOLDERS) {
    uint32_t lead = 0;
    bool bad = false;
#pragma unroll
    for (int i = 0; i < U::OWN; ++i) lead = ::max(lead, tiles.high[i]), bad |= tiles.own[i].z != 0.0f;
    uint32_t* leads = reinterpret_cast<uint32_t*>(S::lead()) + 32 * warp;
    leads[lane] = lead;
    __syncwarp();
    uint4 four[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) four[i] = ptx::load_shared16(leads + 4 * i);
    int better = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i)
      better += int(four[i].x > lead) + int(four[i].y > lead) + int(four[i].z > lead) + int(four[i].w > lead);
    const uint32_t least = __reduce_min_sync(ALL_LANES, better < U::K / WARPS ? lead : ALL_LANES);
    lead = __reduce_max_sync(ALL_LANES, lead);
    bad = __any_sync(ALL_LANES, bad);
    if (lane == 0) S::floor()[warp] = least, S::most()[warp] = lead, S::bad()[warp] = bad;
  }
  __syncthreads();
  const uint4 low = ptx::load_shared16(S::floor()), high = ptx::load_shared16(S::floor() + 4);
  const uint32_t floors[WARPS] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
  if (threadIdx.x < U::HOLDERS) {
    int reach = 0;
#pragma unroll
    for (int i = 0; i < WARPS; ++i) {
      int all = 0;
#pragma unroll
      for (int j = 0; j < U::OWN; ++j) all += __popc(__ballot_sync(ALL_LANES, tiles.high[j] >= floors[i]));
      if (lane == i) reach = all;
    }
    if (lane < WARPS) atomicAdd(S::above() + lane, reach);
  }
  __syncthreads();
  const uint4 few = ptx::load_shared16(S::above()), more = ptx::load_shared16(S::above() + 4);
  const uint32_t above[WARPS] = {few.x, few.y, few.z, few.w, more.x, more.y, more.z, more.w};
  uint32_t floor = 1;
#pragma unroll
  for (int i = 0; i < WARPS; ++i)
    if (above[i] >= U::K) floor = ::max(floor, floors[i]);
  return floor;
}

// A place in a list for each lane that has `mine`: one addition a warp.
__device__ __forceinline__ int place_for(bool mine, int32_t* count) {
  const int lane = threadIdx.x % 32;
  const uint32_t lanes = __ballot_sync(ALL_LANES, mine);
  int base = 0;
  if (lane == 0 && lanes != 0) base = atomicAdd(count, __popc(lanes));
  return __shfl_sync(ALL_LANES, base, 0) + __popc(lanes & ((1u << lane) - 1));
}

// A warp's part of the softmax sum, in an order fixed by TILES. By the holders.
template <class U, class S>
__device__ __forceinline__ void weigh(const Tiles<U>& tiles) {
  uint32_t high = 0;
#pragma unroll
  for (int i = 0; i < U::HOLDERS / 32; ++i) high = ::max(high, S::most()[i]);
  const float most = high == 0 ? -INFINITY : logit_of(high);
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < U::OWN; ++i)
    if (tiles.own[i].x > -INFINITY && most < INFINITY) sum += tiles.own[i].y * expf(tiles.own[i].x - most);
#pragma unroll
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(ALL_LANES, sum, step);
  if (threadIdx.x % 32 == 0) S::sum()[threadIdx.x / 32] = sum;
}

// Maximum, sum and flag of the row from those of the warps. By one thread.
template <class U, class S>
__device__ __forceinline__ void join(float* stats, int32_t* finite) {
  uint32_t high = S::most()[0];
  float sum = S::sum()[0];
  bool bad = S::bad()[0] != 0;
#pragma unroll
  for (int i = 1; i < U::HOLDERS / 32; ++i) high = ::max(high, S::most()[i]), sum += S::sum()[i], bad |= S::bad()[i] != 0;
  stats[0] = high == 0 ? -INFINITY : logit_of(high);
  stats[1] = sum;
  *finite = !bad && high != 0;
}

// Lists the groups of four neighbouring logits, of the listed tiles, of which one reaches the floor.
template <class U, class S>
__device__ __forceinline__ void list_quads(int listed, float floor, const float* logits) {
  constexpr int AT_ONCE = 6, WARPS = U::THREADS / 32;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll 1
  for (int begin = warp; begin < listed; begin += AT_ONCE * WARPS) {
    float4 x[AT_ONCE];
    int first[AT_ONCE];
#pragma unroll
    for (int i = 0; i < AT_ONCE; ++i) {
      const int at = begin + i * WARPS;
      uint4 v = make_uint4(0x7fc00000u, 0x7fc00000u, 0x7fc00000u, 0x7fc00000u);  // NaN, which reaches nothing
      first[i] = (at < listed ? S::list()[at] : 0) * TILE + 4 * lane;
      if (at < listed && lane < QUADS && first[i] < U::V) v = ptx::load16(logits + first[i]);
      x[i] = make_float4(__uint_as_float(v.x), __uint_as_float(v.y), __uint_as_float(v.z), __uint_as_float(v.w));
    }
    uint32_t lanes[AT_ONCE];
    int all = 0, base = 0;
#pragma unroll
    for (int i = 0; i < AT_ONCE; ++i) {
      lanes[i] = __ballot_sync(ALL_LANES, fmaxf(fmaxf(x[i].x, x[i].y), fmaxf(x[i].z, x[i].w)) >= floor);
      all += __popc(lanes[i]);
    }
    if (lane == 0) base = atomicAdd(S::count() + 2, all);
    base = __shfl_sync(ALL_LANES, base, 0);
#pragma unroll
    for (int i = 0; i < AT_ONCE; ++i) {
      const int place = base + __popc(lanes[i] & ((1u << lane) - 1));
      base += __popc(lanes[i]);
      if (!(lanes[i] >> lane & 1) || place >= U::ROOM) continue;
      reinterpret_cast<float4*>(S::quads())[place] = x[i];
      S::firsts()[place] = first[i];
    }
  }
}

// What `emit` needs is the same for both ways.
template <class U>
struct Best {
  int32_t rank, *tokens;
  float* values;

  __device__ __forceinline__ void operator()(int place, uint64_t entry) const {
    tokens[place] = entry == 0 ? -1 : rank * U::V + int32_t(~uint32_t(entry));
    values[place] = entry == 0 ? -INFINITY : logit_of(uint32_t(entry >> 32));
  }
};

// Rows of which too much reaches the floor, such as those with many equal logits: exactly K tiles, told apart like tokens. They are
// read once more, so that other rows need not keep theirs.
template <class U, class S>
__device__ __noinline__ void top_k_close(const float* of_row, uint32_t floor, const float* logits, Best<U> emit) {
  Tiles<U> tiles;
  tiles.load(of_row);
  __syncthreads();  // all have read how many were pooled
  if (threadIdx.x == 0) S::count()[0] = 0;
  __syncthreads();
  select_from<U, S, U::OWN>(
      floor, [&](int i) { return tiles.high[i]; },
      [&](int i) { return entry_of(tiles.high[i], uint32_t(__float_as_int(tiles.own[i].w))); },
      [&](int place, uint64_t entry) { S::list()[place] = entry == 0 ? -1 : int32_t(~uint32_t(entry)) / TILE; });
  __syncthreads();
  float x[U::SCANNED];
  int first[U::SCANNED / 4];
#pragma unroll
  for (int i = 0; i < U::SCANNED / 4; ++i) {
    const int place = i * U::THREADS + threadIdx.x, tile = place < U::K * QUADS ? S::list()[place / QUADS] : -1;
    first[i] = tile * TILE + place % QUADS * 4;
    uint4 v = make_uint4(0xff800000u, 0xff800000u, 0xff800000u, 0xff800000u);
    if (tile >= 0 && first[i] < U::V) v = ptx::load16(logits + first[i]);
    x[4 * i] = __uint_as_float(v.x), x[4 * i + 1] = __uint_as_float(v.y);
    x[4 * i + 2] = __uint_as_float(v.z), x[4 * i + 3] = __uint_as_float(v.w);
  }
  select<U, S, U::SCANNED>([&](int i) { return ordered(x[i]); },
                           [&](int i) { return entry_of(ordered(x[i]), uint32_t(first[i / 4] + i % 4)); }, emit);
}

}  // namespace head

template <class U, class S>
__device__ __forceinline__ void lm_head_top_k(const float* logits, const float* tiles, int32_t rank, int32_t* tokens,
                                              float* values, float* stats, int32_t* finite, int M) {
  const int64_t row = blockIdx.x;
  const head::Best<U> emit{rank, tokens + row * U::K, values + row * U::K};
  ptx::grid_dependency_launch();  // the weights of a product behind may be on their way while this runs
  ptx::grid_dependency_wait();
  head::Tiles<U> own;
  own.load(tiles + row * U::TILES * 4);
  const uint32_t floor = head::tiles_floor<U, S>(own);
  if (threadIdx.x < U::HOLDERS) {
#pragma unroll
    for (int i = 0; i < U::OWN; ++i) {
      const bool mine = own.high[i] >= floor;
      const int place = head::place_for(mine, S::count() + 1);
      if (mine && place < U::ROOM) S::list()[place] = own.tile(i);
    }
  }
  __syncthreads();
  const int listed = S::count()[1];
  const float least = floor == 1 ? -INFINITY : logit_of(floor);
  if (threadIdx.x < U::HOLDERS) head::weigh<U, S>(own);
  head::list_quads<U, S>(::min(listed, U::ROOM), least, logits + row * U::V);
  __syncthreads();
  if (threadIdx.x == U::THREADS - 1) head::join<U, S>(stats + row * 2, finite + row);
  const int quads = S::count()[2], room = ::min(quads, U::ROOM);
#pragma unroll 1
  for (int begin = 0; begin < 4 * room; begin += U::THREADS) {
    const int at = begin + int(threadIdx.x);
    const uint32_t high = at < 4 * room ? ordered(S::quads()[at]) : 0;
    const bool mine = high >= floor;
    const int place = head::place_for(mine, S::count());
    if (mine && place < U::POOL) S::pool()[place] = entry_of(high, uint32_t(S::firsts()[at / 4] + at % 4));
  }
  __syncthreads();
  const int pooled = S::count()[0];
  if (listed > U::ROOM || quads > U::ROOM || pooled > U::POOL)
    head::top_k_close<U, S>(tiles + row * U::TILES * 4, floor, logits + row * U::V, emit);
  else
    rank_pooled<U, S>(pooled, emit);
}

}  // namespace kd
